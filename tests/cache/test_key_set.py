"""The set of keys in ranges against plain sets, and its digests against digests computed from nothing."""

from hypothesis import given
from hypothesis import strategies as st

from cache.events import COLDER_TIERS, TIERS, BlocksRemoved, BlocksStored, CacheCleared, KVEvent
from cache.key_set import ALL_RANGES, NUM_RANGES, KeySet, range_digests, range_of

block_keys = st.integers(0, 255).map(lambda number: bytes([number]) * 16)
key_tuples = st.lists(block_keys, max_size=8).map(tuple)
events = st.one_of(
    st.builds(BlocksStored, key_tuples, st.sampled_from(TIERS)),
    st.builds(BlocksRemoved, key_tuples),
    st.builds(CacheCleared),
)


def places(drawn: list[KVEvent]) -> dict[bytes, str]:
    held: dict[bytes, str] = {}
    for event in drawn:
        match event:
            case BlocksStored(keys, tier):
                held |= dict.fromkeys(keys, tier)
            case BlocksRemoved(keys):
                held = {key: tier for key, tier in held.items() if key not in keys}
            case CacheCleared():
                held = {}
    return held


def replayed(drawn: list[KVEvent]) -> set[bytes]:
    return set(places(drawn))


@given(st.lists(events, max_size=30))
def test_it_is_what_the_events_say(drawn: list[KVEvent]) -> None:
    keys = KeySet()
    for event in drawn:
        keys.apply(event)
    held = replayed(drawn)
    assert (set(keys), len(keys), keys.digests) == (held, len(held), range_digests(held))
    assert all(key in keys for key in held)
    found = keys.colder_keys(ALL_RANGES)
    for tier in COLDER_TIERS:
        assert sorted(found[tier]) == sorted(key for key, where in places(drawn).items() if where == tier)
    assert set().union(*(keys.keys_of(number) for number in range(NUM_RANGES))) == held


@given(st.lists(events, max_size=30), st.sets(st.integers(0, NUM_RANGES - 1)))
def test_a_part_of_the_ranges_passes_over_the_others(drawn: list[KVEvent], ranges: set[int]) -> None:
    keys = KeySet(ranges)
    for event in drawn:
        keys.apply(event)
    held = {key for key in replayed(drawn) if range_of(key) in ranges}
    assert (set(keys), len(keys), keys.digests) == (held, len(held), range_digests(held))
    assert b"\xff" * 16 not in keys or NUM_RANGES - 1 in ranges


@given(st.lists(events, max_size=20), st.lists(events, max_size=20))
def test_ranges_that_are_not_marked_did_not_change(before: list[KVEvent], after: list[KVEvent]) -> None:
    keys = KeySet()
    for event in before:
        keys.apply(event)
    keys.changed.clear()
    for event in after:
        keys.apply(event)
    first, second = places(before), places(before + after)
    assert {range_of(key) for key in first.keys() | second.keys() if first.get(key) != second.get(key)} <= keys.changed


@given(st.sets(st.binary(min_size=16, max_size=16)))
def test_the_digests_do_not_depend_on_order_and_undo_themselves(keys: set[bytes]) -> None:
    assert range_digests(sorted(keys)) == range_digests(sorted(keys, reverse=True))
    assert range_digests([*keys, *keys]) == (0,) * NUM_RANGES


def test_a_range_is_the_first_six_bits() -> None:
    assert [range_of(bytes([first]) + bytes(15)) for first in (0, 3, 4, 255)] == [0, 0, 1, 63]
