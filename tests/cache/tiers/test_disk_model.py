"""Random lives of a disk tier against a model that fits on a screen."""

import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache.block_hasher import BlockKey
from cache.tiers.disk_format import HEADER_BYTES
from tests.cache.tiers.disk_pages import Tier, bytes_for, bytes_taken, change_byte, key

# Chains of up to three blocks that begin alike, as prompts do: the last one names the page.
PAGES = {numbers[-1]: numbers for numbers in [(0,), (0, 1), (0, 1, 2), (0, 3), (4, 5, 6), (4, 5, 7), (8,), (9,)]}
page = st.sampled_from(sorted(PAGES))


class DiskMachine(RuleBasedStateMachine):
    """The model: `pages` by use, the latest last; `stamps`, the order that a restart finds; what is spoilt, and how."""

    @initialize(capacity=st.integers(1, 5))
    def start(self, capacity: int) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.capacity = capacity
        self.tier = Tier(self.root, num_pages=capacity)
        self.tier.work()
        self.waiting: list[int] = []
        self.pages: list[int] = []
        self.stamps: list[int] = []
        self.spoilt: dict[int, str] = {}

    def forget(self, number: int) -> None:
        self.pages.remove(number)
        self.stamps.remove(number)
        self.spoilt.pop(number, None)

    def use(self, number: int) -> None:
        for order in (self.pages, self.stamps):
            if number in order:
                order.remove(number)
            order.append(number)

    @rule(number=page)
    def offer(self, number: int) -> None:
        is_new = number not in self.pages and number not in self.waiting
        assert self.tier.give(*PAGES[number]) == is_new
        if is_new:
            self.waiting.append(number)
        elif number in self.pages:
            self.pages.remove(number)
            self.pages.append(number)

    @rule()
    def work(self) -> None:
        self.tier.work()
        for number in self.waiting:
            if len(self.pages) == self.capacity:
                self.forget(self.pages[0])
            self.use(number)
        self.waiting.clear()

    @rule(number=page)
    def read(self, number: int) -> None:
        is_hit = number in self.pages and number not in self.spoilt
        assert self.tier.has(number) == is_hit
        if is_hit:
            self.use(number)
        elif number in self.pages:
            self.forget(number)

    @precondition(lambda self: set(self.pages) - self.spoilt.keys())
    @rule(data=st.data(), how=st.sampled_from(["blob", "header", "missing"]))
    def spoil(self, data: st.DataObject, how: str) -> None:
        number = data.draw(st.sampled_from(sorted(set(self.pages) - self.spoilt.keys())))
        self.spoilt[number] = how
        if how == "missing":
            self.tier.file(number).unlink()
        else:
            change_byte(self.tier.file(number), HEADER_BYTES if how == "blob" else 100)

    @rule()
    def clear(self) -> None:
        self.tier.clear()
        self.waiting.clear()
        for number in list(self.pages):
            self.forget(number)

    @rule(capacity=st.integers(1, 5), is_killed=st.booleans())
    def restart(self, capacity: int, is_killed: bool) -> None:
        if is_killed:
            self.tier.work()  # or what a reader found spoilt would be found again, and be a miss again
            self.work()
            self.tier.die()
        else:
            self.tier.close()
        self.tier = Tier(self.root, num_pages=capacity)
        self.tier.work()
        self.capacity = capacity
        self.waiting.clear()
        self.pages = list(self.stamps)
        for number in [n for n in self.pages if self.spoilt.get(n) == "missing"]:
            self.forget(number)
        while len(self.pages) > capacity:
            self.forget(self.pages[0])
        for number in [n for n in self.pages if self.spoilt.get(n) == "header"]:
            self.forget(number)

    @invariant()
    def what_is_found_is_the_models(self) -> None:
        assert self.tier.found() == set(self.pages)
        assert self.blocks() == set(self.tier.block_keys())

    @invariant()
    def the_bound_holds(self) -> None:
        assert bytes_taken(self.root / "0") <= bytes_for(self.capacity)
        assert self.tier.num_bytes <= bytes_for(self.capacity)

    @rule()
    def what_was_told_adds_up(self) -> None:
        self.work()
        told: set[BlockKey] = set()
        for stored, removed in self.tier.told:
            assert told.isdisjoint(stored) and told.issuperset(removed)
            told = (told | set(stored)) - set(removed)
        assert told == self.blocks()

    def blocks(self) -> set[BlockKey]:
        return {key(block) for number in self.pages for block in PAGES[number]}

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            self.tier.close()
            shutil.rmtree(self.root)


TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(max_examples=100, stateful_step_count=40)
