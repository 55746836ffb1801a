"""What is written of a key set is read back whole, in part, or refused."""

import random

import pytest

from cache.events import BlocksRemoved, BlocksStored
from cache.key_set import ALL_RANGES, KeySet, range_of
from cache.wire.fields import WireError
from cache.wire.snapshot import SEQ_FIELD, Snapshot, encode_key_range, encode_seq, field_names

RNG = random.Random(1)
KEYS = tuple(RNG.randbytes(16) for _ in range(500))


def key_set() -> KeySet:
    keys = KeySet()
    keys.apply(BlocksStored(KEYS))
    return keys


def read(fields: dict[bytes, bytes], ranges: list[int]) -> Snapshot:
    return Snapshot.from_fields([fields.get(name) for name in field_names(ranges)], ranges)


def test_the_whole_set_and_any_part_of_it_come_back() -> None:
    fields = Snapshot.of(7, key_set()).to_fields()
    whole = read(fields, list(ALL_RANGES))
    assert (whole.seq, set(whole.keys()), set(whole.key_set())) == (7, set(KEYS), set(KEYS))
    part = read(fields, [3, 63])
    wanted = {key for key in KEYS if range_of(key) in (3, 63)}
    assert (part.seq, set(part.keys()), set(part.key_set())) == (7, wanted, wanted)
    assert list(part.key_set().ranges) == [3, 63]


def test_tiers_come_back_and_only_ranges_that_changed_need_be_written() -> None:
    keys = key_set()
    fields = Snapshot.of(7, keys).to_fields()
    keys.changed.clear()
    keys.apply(BlocksStored(KEYS[:5], "host"))
    keys.apply(BlocksStored(KEYS[4:7], "disk"))
    keys.apply(BlocksStored(KEYS[:1]))
    keys.apply(BlocksRemoved(KEYS[6:7]))
    fields |= Snapshot.of(8, keys, sorted(keys.changed)).to_fields()
    whole = read(fields, list(ALL_RANGES))
    assert set(whole.keys()) == set(KEYS) - {KEYS[6]}
    assert {tier: set(found) for tier, found in whole.colder.items()} == {
        "host": set(KEYS[1:4]),
        "disk": {KEYS[4], KEYS[5]},
    }
    again = whole.key_set().colder_keys(ALL_RANGES)
    assert {tier: set(found) for tier, found in again.items()} == {
        tier: set(found) for tier, found in whole.colder.items()
    }


def test_a_part_written_later_takes_the_place_of_the_same_fields_only() -> None:
    keys = key_set()
    fields = Snapshot.of(7, keys).to_fields()
    new = bytes([3 << 2]) + bytes(15)
    keys.apply(BlocksStored((new,)))
    later = Snapshot.of(9, keys, [3]).to_fields()
    assert list(later) == [SEQ_FIELD, b"3"]
    whole = read(fields | later, list(ALL_RANGES))
    assert (whole.seq, set(whole.keys())) == (9, {*KEYS, new})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {b"3": encode_key_range(3, ())},
        {SEQ_FIELD: encode_seq(1)},
        {SEQ_FIELD: encode_seq(1), b"3": encode_key_range(4, ())},
        {SEQ_FIELD: encode_seq(1), b"3": encode_key_range(3, [bytes([4 << 2]) + bytes(15)])},
        {SEQ_FIELD: encode_seq(1), b"3": b"garbage"},
        {SEQ_FIELD: b"garbage", b"3": encode_key_range(3, ())},
    ],
)
def test_what_is_not_whole_is_refused(fields: dict[bytes, bytes]) -> None:
    with pytest.raises(WireError):
        read(fields, [3])
