"""The bytes that replicas and routers leave for each other in Redis.

Plain structs, little-endian, never pickle: whoever can write to Redis must not be able to run code here. Each record
is `magic, version, kind` and its fields; strings and lists carry their length. `decode_*` raises WireError (a
ValueError) for everything that `encode_*` could not have written; readers drop such a record and count it.
"""

from dataclasses import dataclass

from cache.block_hasher import KEY_BYTES, BlockKey
from cache.events import TIERS, BlocksRemoved, BlocksStored, CacheCleared, KVEvent
from cache.key_set import NUM_RANGES
from cache.wire.fields import RecordKind, RecordReader, RecordWriter, WireError

MAX_REVISION = 2**63 - 1
"""Of a policy: nanoseconds of the wall clock until the year 2262."""

_STORED, _REMOVED, _CLEARED = range(1, 4)


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in order. seq: 1, 2, 3, … within one incarnation; a hole means that something was lost (C21)."""

    seq: int
    events: tuple[KVEvent, ...]


@dataclass(frozen=True, slots=True)
class ReplicaRegistration:
    """Who a replica incarnation is.

    replica_id: Ray's `replica_id.unique_id`. incarnation: hex, new for each start of the engine.
    canary: `BlockHasher.canary`; where it differs, block keys of the two processes mean different things.
    started_at: `time.time()` of the start; of two incarnations of one replica the later one counts.
    pages_at: where it gives its pages away, as its peers read it; empty where it gives none. block_bytes: of the K/V of
    one block.
    """

    replica_id: str
    incarnation: str
    canary: BlockKey
    block_size: int
    num_blocks: int
    started_at: float
    pages_at: str = ""
    block_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What an engine has to do. Rates are 0 while nothing was measured.

    num_running: admitted requests. num_waiting: accepted and not admitted, those on their way into the engine included.
    queued_prefill_tokens: prompt tokens of both that are neither computed nor cached.
    num_free_blocks: blocks that could be handed out now, cached ones that nobody references included.
    prefill_tokens_per_second, decode_step_seconds: the engine's own recent measurements. So are pull_, host_ and
    disk_bytes_per_second, of pages that it took from others, from its memory and from its disk.
    num_pulls: how many others take pages from it just now. num_room_blocks: that may come without making others leave,
    in the pool and in colder tiers.
    """

    num_running: int = 0
    num_waiting: int = 0
    queued_prefill_tokens: int = 0
    num_free_blocks: int = 0
    num_blocks: int = 0
    prefill_tokens_per_second: float = 0.0
    decode_step_seconds: float = 0.0
    pull_bytes_per_second: float = 0.0
    host_bytes_per_second: float = 0.0
    disk_bytes_per_second: float = 0.0
    num_pulls: int = 0
    num_room_blocks: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaHeartbeat:
    """Load, and what the key set looks like after batch `last_seq`.

    digests: of each range of the key space (`key_set.range_digests`), so that a mirror can be checked without sending
    the set, and only what differs need be sent (C20).
    """

    load: ReplicaLoad
    last_seq: int
    num_keys: int
    digests: tuple[int, ...] = (0,) * NUM_RANGES


@dataclass(frozen=True, slots=True)
class Reservation:
    """A request that a router sent `age_seconds` before it wrote this.

    prefill_tokens: prompt tokens that the router expected to be computed. keys: blocks that will be there then and that
    the router did not know there; only of what was sent a moment ago, for the others have been told the rest.
    """

    replica_id: str
    age_seconds: float
    prefill_tokens: int
    keys: tuple[BlockKey, ...] = ()


@dataclass(frozen=True, slots=True)
class ReservationList:
    router_id: str
    reservations: tuple[Reservation, ...]


@dataclass(frozen=True, slots=True, order=True)
class PolicySetting:
    """The routing policy of all routers. revision: of two settings the higher one counts; 0 is the configured one.

    weights: those that were given; the others have their defaults. configured: digest of the configuration that this
    setting overrides; where another one is configured by now, the setting does not count.
    """

    revision: int
    name: str
    weights: tuple[tuple[str, float], ...] = ()
    configured: str = ""


def encode_events(batch: EventBatch) -> bytes:
    out = RecordWriter(RecordKind.EVENTS)
    out.pack("QI", batch.seq, len(batch.events))
    for event in batch.events:
        match event:
            case BlocksStored(keys, tier):
                out.pack("BB", _STORED, TIERS.index(tier))
                out.keys(keys)
            case BlocksRemoved(keys):
                out.pack("B", _REMOVED)
                out.keys(keys)
            case CacheCleared():
                out.pack("B", _CLEARED)
    return out.bytes()


def decode_events(data: bytes) -> EventBatch:
    record = RecordReader(data, RecordKind.EVENTS)
    seq, count = record.unpack("QI")
    events: list[KVEvent] = []
    for _ in range(count):  # a wrong count ends at the first missing byte
        (kind,) = record.unpack("B")
        if kind == _STORED:
            (tier,) = record.unpack("B")
            if tier >= len(TIERS):
                raise WireError(f"unknown tier: {tier}")
            events.append(BlocksStored(record.keys(), TIERS[tier]))
        elif kind == _REMOVED:
            events.append(BlocksRemoved(record.keys()))
        elif kind == _CLEARED:
            events.append(CacheCleared())
        else:
            raise WireError(f"unknown kind of event: {kind}")
    record.end()
    return EventBatch(seq, tuple(events))


def encode_registration(registration: ReplicaRegistration) -> bytes:
    out = RecordWriter(RecordKind.REGISTRATION)
    out.string(registration.replica_id)
    out.string(registration.incarnation)
    if len(registration.canary) != KEY_BYTES:
        raise WireError(f"a canary must have {KEY_BYTES} bytes, got {len(registration.canary)}")
    out.pack("16sIQ", registration.canary, registration.block_size, registration.num_blocks)
    out.measure(registration.started_at)
    out.string(registration.pages_at)
    out.pack("Q", registration.block_bytes)
    return out.bytes()


def decode_registration(data: bytes) -> ReplicaRegistration:
    record = RecordReader(data, RecordKind.REGISTRATION)
    replica_id, incarnation = record.string(), record.string()
    canary = record.take(KEY_BYTES)
    block_size, num_blocks = record.unpack("IQ")
    started_at = record.measure()
    pages_at = record.string()
    (block_bytes,) = record.unpack("Q")
    record.end()
    return ReplicaRegistration(
        replica_id, incarnation, canary, block_size, num_blocks, started_at, pages_at, block_bytes
    )


def encode_heartbeat(heartbeat: ReplicaHeartbeat) -> bytes:
    load = heartbeat.load
    out = RecordWriter(RecordKind.HEARTBEAT)
    out.pack(
        "IIQQQ", load.num_running, load.num_waiting, load.queued_prefill_tokens, load.num_free_blocks, load.num_blocks
    )
    out.measure(load.prefill_tokens_per_second)
    out.measure(load.decode_step_seconds)
    out.measure(load.pull_bytes_per_second)
    out.measure(load.host_bytes_per_second)
    out.measure(load.disk_bytes_per_second)
    out.pack("IQ", load.num_pulls, load.num_room_blocks)
    if len(heartbeat.digests) != NUM_RANGES:
        raise WireError(f"a heartbeat must have {NUM_RANGES} digests, got {len(heartbeat.digests)}")
    out.pack(f"QQ{NUM_RANGES}Q", heartbeat.last_seq, heartbeat.num_keys, *heartbeat.digests)
    return out.bytes()


def decode_heartbeat(data: bytes) -> ReplicaHeartbeat:
    record = RecordReader(data, RecordKind.HEARTBEAT)
    running, waiting, queued_tokens, free_blocks, blocks = record.unpack("IIQQQ")
    prefill_rate, decode_step = record.measure(), record.measure()
    pull_rate, host_rate, disk_rate = record.measure(), record.measure(), record.measure()
    num_pulls, num_room_blocks = record.unpack("IQ")
    load = ReplicaLoad(
        running, waiting, queued_tokens, free_blocks, blocks,
        prefill_rate, decode_step, pull_rate, host_rate, disk_rate, num_pulls, num_room_blocks,
    )  # fmt: skip
    last_seq, num_keys, *digests = record.unpack(f"QQ{NUM_RANGES}Q")
    record.end()
    return ReplicaHeartbeat(load, last_seq, num_keys, tuple(digests))


def encode_reservations(reservations: ReservationList) -> bytes:
    out = RecordWriter(RecordKind.RESERVATIONS)
    out.string(reservations.router_id)
    out.pack("I", len(reservations.reservations))
    for entry in reservations.reservations:
        out.string(entry.replica_id)
        out.measure(entry.age_seconds)
        out.pack("Q", entry.prefill_tokens)
        out.keys(entry.keys)
    return out.bytes()


def decode_reservations(data: bytes) -> ReservationList:
    record = RecordReader(data, RecordKind.RESERVATIONS)
    router_id = record.string()
    (count,) = record.unpack("I")
    entries = []
    for _ in range(count):
        replica_id, age_seconds = record.string(), record.measure()
        (prefill_tokens,) = record.unpack("Q")
        entries.append(Reservation(replica_id, age_seconds, prefill_tokens, record.keys()))
    record.end()
    return ReservationList(router_id, tuple(entries))


def encode_policy(setting: PolicySetting) -> bytes:
    out = RecordWriter(RecordKind.POLICY)
    _check_revision(setting.revision)
    out.pack("Q", setting.revision)
    out.string(setting.name)
    out.pack("H", len(setting.weights))
    for name, value in setting.weights:
        out.string(name)
        out.measure(value)
    out.string(setting.configured)
    return out.bytes()


def decode_policy(data: bytes) -> PolicySetting:
    record = RecordReader(data, RecordKind.POLICY)
    (revision,) = record.unpack("Q")
    _check_revision(revision)
    name = record.string()
    (count,) = record.unpack("H")
    weights = tuple((record.string(), record.measure()) for _ in range(count))
    configured = record.string()
    record.end()
    return PolicySetting(revision, name, weights, configured)


def _check_revision(revision: int) -> None:
    if not 0 <= revision <= MAX_REVISION:
        raise WireError(f"a revision must be 0 to {MAX_REVISION}, got {revision}")
