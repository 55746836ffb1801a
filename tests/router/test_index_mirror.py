"""The mirror against a model that keeps plain sets."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache.key_set import range_digests
from router.index_mirror import IndexMirror


def key(number: int) -> bytes:
    return struct.pack("<QQ", number, number ^ 0xABCDEF)


def keys(*numbers: int) -> list[bytes]:
    return [key(number) for number in numbers]


def live_slot(mirror: IndexMirror, *numbers: int) -> int:
    slot = mirror.add_slot()
    mirror.store(slot, keys(*numbers))
    mirror.enliven(slot)
    return slot


def test_longest_prefix_counts_leading_blocks_only() -> None:
    mirror = IndexMirror()
    all_four = live_slot(mirror, 1, 2, 3, 4)
    two = live_slot(mirror, 1, 2, 4)
    no_head = live_slot(mirror, 2, 3, 4)
    assert mirror.longest_prefix(keys(1, 2, 3, 4), 0.0) == {all_four: 4, two: 2}
    assert mirror.longest_prefix(keys(1, 2, 3, 4, 5), 0.0) == {all_four: 4, two: 2}
    assert mirror.longest_prefix(keys(2, 3), 0.0) == {all_four: 2, two: 1, no_head: 2}
    assert mirror.longest_prefix([], 0.0) == {}
    assert mirror.longest_prefix(keys(9), 0.0) == {}


def test_a_slot_counts_from_enliven_to_drop() -> None:
    mirror = IndexMirror()
    slot = mirror.add_slot()
    mirror.store(slot, keys(1, 2))
    assert mirror.longest_prefix(keys(1, 2), 0.0) == {}
    mirror.enliven(slot)
    assert mirror.longest_prefix(keys(1, 2), 0.0) == {slot: 2}
    mirror.drop(slot)
    assert mirror.longest_prefix(keys(1, 2), 0.0) == {}


def test_a_swept_number_is_used_again_and_brings_nothing_with_it() -> None:  # 42, C19
    mirror = IndexMirror()
    dead = live_slot(mirror, *range(100))
    kept = live_slot(mirror, *range(50, 150))
    mirror.predict(dead, keys(1000, 1001), 0.0)
    mirror.drop(dead)
    assert mirror.add_slot() != dead  # not swept yet
    for _ in range(20):
        mirror.sweep(max_keys=10)
    assert mirror.num_blocks == 100
    reborn = mirror.add_slot()
    assert reborn == dead
    mirror.enliven(reborn)
    assert mirror.longest_prefix(keys(0), 0.0) == {}
    assert mirror.longest_prefix(keys(1000), 0.0) == {}
    assert mirror.longest_prefix(keys(60), 0.0) == {kept: 1}


def test_predictions_live_between_half_their_life_and_the_whole() -> None:  # C12
    for start in (0.0, 1.0, 4.9, 7.3):
        mirror = IndexMirror(predicted_seconds=10.0)
        slot = live_slot(mirror)
        mirror.longest_prefix([], 0.0)
        mirror.predict(slot, keys(1, 2), start)
        assert mirror.longest_prefix(keys(1, 2), start + 4.99) == {slot: 2}
        assert mirror.longest_prefix(keys(1, 2), start + 10.0) == {}


def test_a_prediction_that_is_never_confirmed_does_not_live_on_others() -> None:  # C12
    """A hot key is predicted for one slot again and again; what another slot was predicted once ends all the same."""
    mirror = IndexMirror(predicted_seconds=10.0)
    hot, once = live_slot(mirror), live_slot(mirror)
    mirror.predict(once, keys(1), 0.0)
    for second in range(1, 12):
        mirror.predict(hot, keys(1), float(second))
    assert mirror.longest_prefix(keys(1), 11.0) == {hot: 1}


def test_removal_by_the_engine_ends_a_prediction_too() -> None:
    mirror = IndexMirror()
    slot = live_slot(mirror, 1)
    mirror.predict(slot, keys(1, 2), 0.0)
    mirror.remove(slot, keys(1, 2))
    assert mirror.longest_prefix(keys(1), 0.0) == {}


def test_a_block_that_was_never_there_leaves_its_prediction() -> None:
    mirror = IndexMirror()
    slot = live_slot(mirror, 1)
    mirror.predict(slot, keys(1), 0.0)
    mirror.withdraw(slot, keys(1, 2))
    assert mirror.stats(slot).num_keys == 0
    assert mirror.longest_prefix(keys(1), 0.0) == {slot: 1}


def test_published_false_looks_only_at_predictions() -> None:
    mirror = IndexMirror()
    slot = live_slot(mirror, 1, 2, 3)
    mirror.predict(slot, keys(1), 0.0)
    assert mirror.longest_prefix(keys(1, 2, 3), 0.0, published=False) == {slot: 1}


def test_a_resynced_slot_inherits_predictions() -> None:
    mirror = IndexMirror()
    old = live_slot(mirror, 1)
    mirror.predict(old, keys(1, 2, 3), 0.0)
    new = mirror.add_slot()
    mirror.store(new, keys(1))
    mirror.replace(old, new)
    assert mirror.longest_prefix(keys(1, 2, 3), 0.0) == {new: 3}


def test_45_bounded_under_endless_distinct_prompts() -> None:
    """50,000 prompts of 4 blocks; the engine holds the last 1,000 blocks. Then the same without any eviction."""
    mirror = IndexMirror(max_blocks=5000, max_predicted=2000)
    slot = live_slot(mirror)
    for number in range(50_000):
        blocks = keys(*range(4 * number, 4 * number + 4))
        mirror.predict(slot, blocks, number * 0.001)
        mirror.store(slot, blocks)
        if number >= 250:
            mirror.remove(slot, keys(*range(4 * number - 1000, 4 * number - 996)))
        assert mirror.num_blocks <= 1004
        assert mirror.num_predicted <= 2008
    assert mirror.stats(slot).num_refused == 0
    mirror.store(slot, (key(number) for number in range(10**6, 10**6 + 20_000)))
    assert mirror.num_blocks == 5000
    assert mirror.stats(slot).num_refused > 0


def test_dead_slots_do_not_pile_up() -> None:
    """A replica that restarts a thousand times costs the numbers of a few slots."""
    mirror = IndexMirror()
    slots = set()
    for _ in range(1000):
        slot = live_slot(mirror, *range(20))
        slots.add(slot)
        mirror.drop(slot)
        mirror.sweep()
    assert max(slots) < 5
    mirror.sweep()
    assert mirror.num_blocks == 0


@pytest.mark.parametrize("bad", [{"max_blocks": 0}, {"max_predicted": 0}, {"predicted_seconds": 0.0}])
def test_bounds_are_checked(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        IndexMirror(**bad)  # type: ignore[arg-type]


numbers = st.lists(st.integers(0, 30), max_size=8)


class MirrorMachine(RuleBasedStateMachine):
    """Random stores, removals, deaths, restarts and sweeps of four replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.mirror = IndexMirror()
        self.slots = {replica: live_slot(self.mirror) for replica in range(4)}
        self.held: dict[int, set[bytes]] = {replica: set() for replica in range(4)}

    @rule(replica=st.integers(0, 3), blocks=numbers)
    def store(self, replica: int, blocks: list[int]) -> None:
        self.mirror.store(self.slots[replica], keys(*blocks))
        self.held[replica] |= set(keys(*blocks))

    @rule(replica=st.integers(0, 3), blocks=numbers)
    def remove(self, replica: int, blocks: list[int]) -> None:
        self.mirror.remove(self.slots[replica], keys(*blocks))
        self.held[replica] -= set(keys(*blocks))

    @rule(replica=st.integers(0, 3), blocks=numbers)
    def withdraw(self, replica: int, blocks: list[int]) -> None:
        self.mirror.withdraw(self.slots[replica], keys(*blocks))
        self.held[replica] -= set(keys(*blocks))

    @rule(replica=st.integers(0, 3))
    def restart(self, replica: int) -> None:
        self.mirror.drop(self.slots[replica])
        self.slots[replica] = live_slot(self.mirror)
        self.held[replica] = set()

    @rule(replica=st.integers(0, 3), blocks=numbers)
    def resync(self, replica: int, blocks: list[int]) -> None:
        new = self.mirror.add_slot()
        self.mirror.store(new, keys(*blocks))
        self.mirror.replace(self.slots[replica], new)
        self.slots[replica], self.held[replica] = new, set(keys(*blocks))

    @rule(max_keys=st.integers(1, 10))
    def sweep(self, max_keys: int) -> None:
        self.mirror.sweep(max_keys)

    @rule(blocks=numbers)
    def look_up(self, blocks: list[int]) -> None:
        prompt = keys(*blocks)
        expected = {}
        for replica, slot in self.slots.items():
            depth = next((i for i, block in enumerate(prompt) if block not in self.held[replica]), len(prompt))
            if depth:
                expected[slot] = depth
        assert self.mirror.longest_prefix(prompt, 0.0) == expected

    @invariant()
    def stats_agree(self) -> None:
        for replica, slot in self.slots.items():
            stats = self.mirror.stats(slot)
            assert (stats.num_keys, stats.digests) == (len(self.held[replica]), range_digests(self.held[replica]))


TestMirrorMachine = MirrorMachine.TestCase
TestMirrorMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_many_slots_at_once(seed: int) -> None:
    rng = random.Random(seed)
    mirror = IndexMirror()
    depths = {live_slot(mirror, *range(depth)): depth for depth in (rng.randrange(0, 40) for _ in range(100))}
    found = mirror.longest_prefix(keys(*range(32)), 0.0)
    assert found == {slot: min(depth, 32) for slot, depth in depths.items() if depth}
