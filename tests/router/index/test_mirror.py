"""The mirror against a model that keeps plain sets."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache.events import COLDER_TIERS, TIERS, Tier
from cache.key_set import ALL_RANGES, range_digests
from cache.wire.records import ReplicaRegistration
from router.followed_replicas import KEYS_PER_HOLD
from router.index.mirror import IndexMirror
from router.ladder import Rung
from router.router_state import RouterState


def key(number: int) -> bytes:
    return struct.pack("<QQ", number, number ^ 0xABCDEF)


def keys(*numbers: int) -> list[bytes]:
    return [key(number) for number in numbers]


def live_slot(mirror: IndexMirror, *numbers: int) -> int:
    slot = mirror.add_slot()
    mirror.store(slot, keys(*numbers))
    mirror.enliven(slot)
    return slot


def hand_over(mirror: IndexMirror, old: int, new: int) -> None:
    """The predictions, as a resync does it, in slices."""
    for generation in (0, 1):
        for block in mirror.predictions.keys(generation):
            mirror.predictions.inherit(old, [block])


def succeed(mirror: IndexMirror, old: int, new: int) -> None:
    mirror.predictions.name_heir(old, new)
    hand_over(mirror, old, new)
    mirror.enliven(new)
    mirror.drop(old)


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


def test_a_swept_number_is_used_again_and_brings_nothing_with_it() -> None:
    """A replica that restarts is not credited with what its predecessor held (42, C19)."""
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


def test_predictions_live_between_half_their_life_and_the_whole() -> None:
    """Long enough for siblings to follow, and not for ever where no engine confirms them (C12)."""
    for start in (0.0, 1.0, 4.9, 7.3):
        mirror = IndexMirror(predicted_seconds=10.0)
        slot = live_slot(mirror)
        mirror.longest_prefix([], 0.0)
        mirror.predict(slot, keys(1, 2), start)
        assert mirror.longest_prefix(keys(1, 2), start + 4.99) == {slot: 2}
        assert mirror.longest_prefix(keys(1, 2), start + 10.0) == {}


def test_a_prediction_that_is_never_confirmed_does_not_live_on_others() -> None:
    """A hot key is predicted for one slot again and again; what another slot was predicted once ends all the same
    (C12)."""
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
    mirror.predictions.name_heir(old, new)
    hand_over(mirror, old, new)
    mirror.predict(old, keys(4), 0.0)  # while the snapshot is not in force yet
    assert mirror.longest_prefix(keys(1, 2, 3, 4), 0.0) == {old: 4}
    mirror.enliven(new)
    mirror.drop(old)
    assert mirror.longest_prefix(keys(1, 2, 3, 4), 0.0) == {new: 4}


def test_who_was_named_heir_and_never_counted_leaves_nothing_behind() -> None:
    mirror = IndexMirror()
    old = live_slot(mirror, 1)
    mirror.predict(old, keys(2), 0.0)
    new = mirror.add_slot()
    mirror.predictions.name_heir(old, new)
    hand_over(mirror, old, new)
    mirror.predictions.disown(old)
    mirror.drop(new)
    mirror.predict(old, keys(3), 0.0)
    mirror.sweep()
    assert live_slot(mirror) == new
    assert mirror.longest_prefix(keys(2), 0.0) == mirror.longest_prefix(keys(3), 0.0) == {old: 1}


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
        self.tiers: dict[int, dict[bytes, str]] = {replica: {} for replica in range(4)}

    @rule(replica=st.integers(0, 3), blocks=numbers)
    def store(self, replica: int, blocks: list[int]) -> None:
        self.mirror.store(self.slots[replica], keys(*blocks))
        self.held[replica] |= set(keys(*blocks))

    @rule(replica=st.integers(0, 3), blocks=numbers, tier=st.sampled_from(TIERS))
    def place(self, replica: int, blocks: list[int], tier: Tier) -> None:
        """Keys that are not held there are in no tier of it."""
        self.mirror.place(self.slots[replica], keys(*blocks), tier)
        self.tiers[replica] |= {key: tier for key in keys(*blocks) if key in self.held[replica]}

    @rule(replica=st.integers(0, 3), blocks=numbers)
    def remove(self, replica: int, blocks: list[int]) -> None:
        self.mirror.remove(self.slots[replica], keys(*blocks))
        self.held[replica] -= set(keys(*blocks))
        self.tiers[replica] = {key: tier for key, tier in self.tiers[replica].items() if key in self.held[replica]}

    @rule(replica=st.integers(0, 3), blocks=numbers)
    def withdraw(self, replica: int, blocks: list[int]) -> None:
        self.mirror.withdraw(self.slots[replica], keys(*blocks))
        self.held[replica] -= set(keys(*blocks))
        self.tiers[replica] = {key: tier for key, tier in self.tiers[replica].items() if key in self.held[replica]}

    @rule(replica=st.integers(0, 3))
    def restart(self, replica: int) -> None:
        self.mirror.drop(self.slots[replica])
        self.slots[replica] = live_slot(self.mirror)
        self.held[replica], self.tiers[replica] = set(), {}

    @rule(replica=st.integers(0, 3), blocks=numbers)
    def resync(self, replica: int, blocks: list[int]) -> None:
        new = self.mirror.add_slot()
        self.mirror.store(new, keys(*blocks))
        succeed(self.mirror, self.slots[replica], new)
        self.slots[replica], self.held[replica], self.tiers[replica] = new, set(keys(*blocks)), {}

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
        colder: dict[int, dict[str, int]] = {}
        for replica, slot in self.slots.items():
            where = [self.tiers[replica].get(key, "device") for key in prompt[: expected.get(slot, 0)]]
            counts = {tier: where.count(tier) for tier in COLDER_TIERS if tier in where}
            if counts:
                colder[slot] = counts
        assert self.mirror.colder_blocks(prompt, expected) == colder

    @invariant()
    def stats_agree(self) -> None:
        for replica, slot in self.slots.items():
            stats = self.mirror.stats(slot)
            assert (stats.num_keys, stats.digests) == (len(self.held[replica]), range_digests(self.held[replica]))


TestMirrorMachine = MirrorMachine.TestCase
TestMirrorMachine.settings = settings(max_examples=60, stateful_step_count=40)


@given(st.integers(0, 2**32))
@settings(max_examples=20)
def test_many_slots_at_once(seed: int) -> None:
    rng = random.Random(seed)
    mirror = IndexMirror()
    depths = {live_slot(mirror, *range(depth)): depth for depth in (rng.randrange(0, 40) for _ in range(100))}
    found = mirror.longest_prefix(keys(*range(32)), 0.0)
    assert found == {slot: min(depth, 32) for slot, depth in depths.items() if depth}


class CountedHolds:
    """Stands for the state's lock: what was added to or taken from tables in the longest hold."""

    def __init__(self, mirror: IndexMirror) -> None:
        self._mirror = mirror
        self.most = self.num_holds = 0

    def __enter__(self) -> None:
        self._before = self._size()

    def __exit__(self, *_: object) -> None:
        self.num_holds += 1
        self.most = max(self.most, abs(self._size() - self._before))

    def _size(self) -> int:
        return self._mirror.num_blocks + self._mirror.num_predicted + sum(map(len, self._mirror.predictions._dropped))


def test_the_lock_is_held_shortly_whatever_comes_and_goes() -> None:
    """A replica with many blocks joins, is loaded again, fails and is swept: never many keys in one hold."""
    mirror = IndexMirror(predicted_seconds=10.0)
    state = RouterState(mirror)
    holds = state._lock = CountedHolds(mirror)  # type: ignore[assignment]
    registration = ReplicaRegistration("a", "1", bytes(16), 16, 100, 1.0)
    blocks = [random.Random(n).randbytes(16) for n in range(20_000)]
    for _ in range(2):
        assert state.adopt(registration, state.load_slot(blocks), 0.0)
    for start in range(0, 20_000, 100):
        state.reserve(f"r{start}", "a", 100, [random.Random(-n).randbytes(16) for n in range(start, start + 100)], 0.0)
    assert max(len(state.published_keys([number])) for number in ALL_RANGES) < 20_000 / len(ALL_RANGES) * 1.5
    assert sorted(state.published_keys(ALL_RANGES)) == sorted(blocks)
    state.fail("a", 0.0)
    state.views([], [], 16, 100.0, Rung.FRESH)  # all predictions are over
    for _ in range(20):
        state.sweep()
    assert mirror.num_blocks == mirror.num_predicted == sum(map(len, mirror.predictions._dropped)) == 0
    assert holds.most <= KEYS_PER_HOLD
