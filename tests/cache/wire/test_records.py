"""The codec gives back what was put in, and refuses everything else with one exception."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.events import TIERS, BlocksRemoved, BlocksStored, CacheCleared
from cache.key_set import NUM_RANGES
from cache.wire import records as wire
from cache.wire.fields import MAX_MEASURE, WIRE_VERSION, WireError
from cache.wire.snapshot import decode_key_range, decode_seq, encode_key_range, encode_seq

block_keys = st.binary(min_size=16, max_size=16)
key_tuples = st.lists(block_keys, max_size=20).map(tuple)
names = st.text(st.characters(codec="utf-8"), max_size=100)
measures = st.floats(0.0, MAX_MEASURE)
uint32, uint64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
revisions = st.integers(0, wire.MAX_REVISION)
events = st.one_of(
    st.builds(BlocksStored, key_tuples, st.sampled_from(TIERS)),
    st.builds(BlocksRemoved, key_tuples),
    st.builds(CacheCleared),
)
loads = st.builds(wire.ReplicaLoad, uint32, uint32, uint64, uint64, uint64, *[measures] * 5, uint32, uint64)
reservations = st.builds(wire.Reservation, names, measures, uint64, key_tuples)


def in_range(number: int, keys: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple(bytes([number << 2 | key[0] & 3]) + key[1:] for key in keys)


def key_range(
    drawn: tuple[int, tuple[bytes, ...], tuple[bytes, ...], tuple[bytes, ...]],
) -> tuple[int, tuple[bytes, ...], dict[str, tuple[bytes, ...]]]:
    number, *by_tier = drawn
    device, host, disk = (tuple(dict.fromkeys(in_range(number, keys))) for keys in by_tier)
    host = tuple(key for key in host if key not in device)
    disk = tuple(key for key in disk if key not in (*device, *host))
    return number, device + host + disk, {"host": host, "disk": disk}


RECORDS: dict[str, tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "events": (
        st.builds(wire.EventBatch, uint64, st.lists(events, max_size=8).map(tuple)),
        wire.encode_events,
        wire.decode_events,
    ),
    "registration": (
        st.builds(wire.ReplicaRegistration, names, names, block_keys, uint32, uint64, measures, names, uint64),
        wire.encode_registration,
        wire.decode_registration,
    ),
    "heartbeat": (
        st.builds(wire.ReplicaHeartbeat, loads, uint64, uint64, st.tuples(*[uint64] * NUM_RANGES)),
        wire.encode_heartbeat,
        wire.decode_heartbeat,
    ),
    "snapshot seq": (uint64, encode_seq, decode_seq),
    "key range": (
        st.tuples(st.integers(0, NUM_RANGES - 1), key_tuples, key_tuples, key_tuples).map(key_range),
        lambda record: encode_key_range(*record),
        decode_key_range,
    ),
    "reservations": (
        st.builds(wire.ReservationList, names, st.lists(reservations, max_size=8).map(tuple)),
        wire.encode_reservations,
        wire.decode_reservations,
    ),
    "policy": (
        st.builds(
            wire.PolicySetting, revisions, names, st.lists(st.tuples(names, measures), max_size=8).map(tuple), names
        ),
        wire.encode_policy,
        wire.decode_policy,
    ),
}


@pytest.mark.parametrize("kind", RECORDS)
@given(data=st.data())
def test_every_record_survives_the_round_trip(kind: str, data: st.DataObject) -> None:
    strategy, encode, decode = RECORDS[kind]
    record = data.draw(strategy)
    assert decode(encode(record)) == record


@pytest.mark.parametrize("kind", RECORDS)
@given(noise=st.binary(max_size=300))
def test_random_bytes_are_refused_or_a_whole_record(kind: str, noise: bytes) -> None:
    _, encode, decode = RECORDS[kind]
    try:
        record = decode(noise)
    except WireError:
        return
    assert encode(record) == noise


@pytest.mark.parametrize("kind", RECORDS)
@given(data=st.data())
def test_damaged_records_are_refused_or_another_whole_record(kind: str, data: st.DataObject) -> None:
    strategy, encode, decode = RECORDS[kind]
    damaged = bytearray(encode(data.draw(strategy)))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        record = decode(bytes(damaged))
    except WireError:
        return
    assert encode(record) == bytes(damaged)


@pytest.mark.parametrize("kind", RECORDS)
@given(data=st.data())
def test_a_cut_or_longer_record_is_refused(kind: str, data: st.DataObject) -> None:
    strategy, encode, decode = RECORDS[kind]
    whole = encode(data.draw(strategy))
    with pytest.raises(WireError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(WireError):
        decode(whole + b"\0")


def test_another_version_and_another_kind_are_refused() -> None:
    data = encode_seq(1)
    with pytest.raises(WireError, match="version"):
        decode_seq(data[:1] + bytes([WIRE_VERSION + 1]) + data[2:])
    with pytest.raises(WireError, match="kind"):
        wire.decode_events(data)


def test_a_huge_count_is_refused_before_anything_is_built() -> None:
    data = encode_key_range(1, ())
    with pytest.raises(WireError, match="ends after"):
        decode_key_range(data[:-4] + b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    "record",
    [
        wire.ReplicaRegistration("r" * 513, "0", bytes(16), 16, 1, 0.0),
        wire.ReplicaRegistration("r", "0", bytes(15), 16, 1, 0.0),
        wire.ReplicaRegistration("r", "0", bytes(16), -1, 1, 0.0),
        wire.ReplicaRegistration("r", "0", bytes(16), 16, 1, float("nan")),
        wire.ReplicaRegistration("r", "0", bytes(16), 16, 1, 1e308),
    ],
)
def test_what_no_reader_would_take_is_not_written(record: wire.ReplicaRegistration) -> None:
    with pytest.raises(WireError):
        wire.encode_registration(record)
