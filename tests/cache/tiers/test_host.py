"""The host tier: bounded, least recently used first out, and never a byte of another page."""

import threading

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache.block_hasher import BlockKey
from cache.tiers.host import Blob, HostPage, HostTier
from tests.waiting import wait_until

PAGE_BYTES = 96


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def blob(number: int) -> Blob:
    return np.full(PAGE_BYTES, number % 251, np.uint8)


def contents(tier: HostTier, number: int) -> list[int] | None:
    found: list[int] = []

    def take(held: Blob) -> bool:
        found.extend(held.tolist())
        return True

    return found if tier.read(key(number), take) else None


def test_a_bound_below_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match="host_kv_memory must hold a page of 96 bytes, got 95"):
        HostTier(95, PAGE_BYTES)


def test_what_was_not_used_for_longest_goes_and_is_shown_before() -> None:
    tier, gone = HostTier(3 * PAGE_BYTES, PAGE_BYTES), []

    def leaving(page: HostPage, held: Blob) -> None:
        gone.append((page.block_keys[-1], held.tolist(), page.num_uses))

    for number in (1, 2, 3):
        assert tier.put([key(number)], blob(number), leaving)
    assert contents(tier, 1) == blob(1).tolist()
    assert tier.put([key(2)], blob(2), leaving)  # once more: used, and not copied again
    assert tier.put([key(4)], blob(4), leaving)
    assert gone == [(key(3), blob(3).tolist(), 0)]
    assert tier.put([key(5)], blob(5), leaving)
    assert gone[1][0::2] == (key(1), 1)
    assert (tier.num_bytes, tier.max_bytes) == (3 * PAGE_BYTES, 3 * PAGE_BYTES)


def test_a_page_that_is_being_read_stays_and_one_that_was_cleared_meanwhile_comes_back_as_room() -> None:
    tier, reading, go_on = HostTier(PAGE_BYTES, PAGE_BYTES), threading.Event(), threading.Event()
    tier.put([key(1)], blob(1))
    seen: list[tuple[BlockKey, ...]] = []

    def take(held: Blob) -> bool:
        reading.set()
        go_on.wait()
        return bool((held == blob(1)).all())

    reader = threading.Thread(target=lambda: seen.append(tier.read(key(1), take)))
    reader.start()
    wait_until(reading.is_set, "the page is being read")
    assert not tier.put([key(2)], blob(2))  # nothing else could go
    tier.clear()
    assert key(1) not in tier
    assert not tier.put([key(2)], blob(2))  # its bytes are still being read
    go_on.set()
    reader.join()
    assert seen == [(key(1),)]
    assert tier.put([key(2)], blob(2))
    tier.check_invariants()


class HostMachine(RuleBasedStateMachine):
    """Against a list of pages in the order of their last use."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = HostTier(4 * PAGE_BYTES + 7, PAGE_BYTES)
        self.model: list[int] = []

    @rule(number=st.integers(0, 8))
    def put(self, number: int) -> None:
        assert self.tier.put([key(100 + number), key(number)], blob(number))
        if number in self.model:
            self.model.remove(number)
        self.model = [*self.model, number][-4:]

    @rule(number=st.integers(0, 8))
    def read(self, number: int) -> None:
        expected = blob(number).tolist() if number in self.model else None
        assert contents(self.tier, number) == expected
        if expected is not None:
            self.model.remove(number)
            self.model.append(number)

    @rule()
    def clear(self) -> None:
        assert {page.block_keys[-1] for page in self.tier.clear()} == {key(number) for number in self.model}
        self.model = []

    @invariant()
    def holds_the_same(self) -> None:
        self.tier.check_invariants()
        assert self.tier.num_bytes == len(self.model) * PAGE_BYTES
        blocks = {key(number) for number in self.model} | {key(100 + number) for number in self.model}
        assert self.tier.block_keys() == blocks


TestHostMachine = HostMachine.TestCase
TestHostMachine.settings = settings(max_examples=60, stateful_step_count=40)
