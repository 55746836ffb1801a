"""A replica's key set as it lies in Redis: one hash, with a field for each range of the key space."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from cache.block_hasher import BlockKey
from cache.events import COLDER_TIERS, BlocksStored, Tier
from cache.key_set import ALL_RANGES, KeySet
from cache.wire.fields import RecordKind, RecordReader, RecordWriter, WireError

SEQ_FIELD = b"seq"


def encode_seq(seq: int) -> bytes:
    out = RecordWriter(RecordKind.SNAPSHOT_SEQ)
    out.pack("Q", seq)
    return out.bytes()


def decode_seq(data: bytes) -> int:
    record = RecordReader(data, RecordKind.SNAPSHOT_SEQ)
    (seq,) = record.unpack("Q")
    record.end()
    return seq


def encode_key_range(
    number: int, keys: Iterable[BlockKey], colder: Mapping[Tier, Iterable[BlockKey]] = MappingProxyType({})
) -> bytes:
    """The keys of one range of the key space, in no order. colder: those of them that do not lie on the device."""
    out = RecordWriter(RecordKind.KEY_RANGE)
    out.pack("B", number)
    placed = [tuple(colder.get(tier, ())) for tier in COLDER_TIERS]
    elsewhere = {key for found in placed for key in found}
    out.keys([key for key in keys if key not in elsewhere] if elsewhere else keys)
    for found in placed:
        out.keys(found)
    return out.bytes()


def decode_key_range(data: bytes) -> tuple[int, tuple[BlockKey, ...], dict[Tier, tuple[BlockKey, ...]]]:
    """Number, all keys, and those of colder tiers. Raises WireError also for a key that lies in another range."""
    record = RecordReader(data, RecordKind.KEY_RANGE)
    (number,) = record.unpack("B")
    keys = record.keys()
    colder = {tier: record.keys() for tier in COLDER_TIERS}
    record.end()
    for found in colder.values():
        keys += found
    if any(key[0] >> 2 != number for key in keys):
        raise WireError(f"not only keys of range {number}")
    return number, keys, colder


def field_names(ranges: Iterable[int]) -> list[bytes]:
    """Of the hash, for these ranges; SEQ_FIELD is the first."""
    return [SEQ_FIELD, *(b"%d" % number for number in ranges)]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Some or all ranges of a key set after batch `seq`.

    A writer that knows which ranges changed since its last snapshot writes only those and the new number: all fields
    are set by one command, so that a reader finds them together.
    """

    seq: int
    ranges: Mapping[int, Sequence[BlockKey]]
    colder: Mapping[Tier, Sequence[BlockKey]] = field(default_factory=dict)
    """Those of the keys that do not lie on the device."""

    @classmethod
    def of(cls, seq: int, keys: KeySet, ranges: Iterable[int] = ALL_RANGES) -> "Snapshot":
        ranges = tuple(ranges)
        return cls(seq, {number: keys.keys_of(number) for number in ranges}, keys.colder_keys(ranges))

    @classmethod
    def from_fields(cls, fields: Sequence[bytes | None], ranges: Sequence[int]) -> "Snapshot":
        """fields: values of `field_names(ranges)`. Raises WireError for one that is missing or malformed."""
        present = [data for data in fields if data is not None]
        if len(present) != 1 + len(ranges):
            raise WireError(f"a snapshot of {len(ranges)} ranges has {len(present)} fields")
        found: dict[int, tuple[BlockKey, ...]] = {}
        colder: dict[Tier, list[BlockKey]] = {tier: [] for tier in COLDER_TIERS}
        for number, keys, placed in map(decode_key_range, present[1:]):
            found[number] = keys
            for tier, of_tier in placed.items():
                colder[tier] += of_tier
        if list(found) != list(ranges):
            raise WireError(f"a snapshot holds the ranges {list(found)}, {list(ranges)} wanted")
        return cls(decode_seq(present[0]), found, colder)

    def to_fields(self) -> dict[bytes, bytes]:
        colder: dict[int, dict[Tier, list[BlockKey]]] = {}
        for tier, of_tier in self.colder.items():
            for key in of_tier:
                colder.setdefault(key[0] >> 2, {}).setdefault(tier, []).append(key)
        records = [encode_key_range(number, keys, colder.get(number, {})) for number, keys in self.ranges.items()]
        return dict(zip(field_names(self.ranges), [encode_seq(self.seq), *records], strict=True))

    def keys(self) -> list[BlockKey]:
        return [key for keys in self.ranges.values() for key in keys]

    def key_set(self) -> KeySet:
        """A set of these ranges, to which later events can be applied."""
        found = KeySet(self.ranges)
        for keys in self.ranges.values():
            found.apply(BlocksStored(tuple(keys)))
        for tier, of_tier in self.colder.items():
            found.apply(BlocksStored(tuple(of_tier), tier))
        return found
