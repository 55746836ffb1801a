"""The commands with which a router reads the shared memory and leaves its own traces there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis, ResponseError
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError
from redis.retry import Retry

from cache.wire.fields import WireError
from cache.wire.redis_keys import HISTORY_TTL_SECONDS, LEASE_SECONDS, TOMBSTONE, TOMBSTONE_SECONDS, RedisKeys
from cache.wire.snapshot import field_names

SOCKET_TIMEOUT_SECONDS = 0.5
ENTRIES_PER_READ = 256
HEARTBEATS_PER_READ = 4096
WRONG_TYPE = b""
"""What is read of a name under which something of another type lies: no codec takes it, so it counts as malformed."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """A record that its owner renews, as bytes, and how long ago it did so, on the server's clock."""

    data: bytes | None
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Announced:
    """All members, all other routers, the policy somebody set, and names of ours that had to be removed."""

    members: list[str]
    routers: list[str]
    policy: bytes | None
    removed: list[str]


@dataclass(frozen=True, slots=True)
class HeartbeatsRead:
    """entries: (id, member, record), the oldest first. server_ms: the server's clock then, of which ids are made.

    removed: whether something else than a stream lay there and had to go.
    """

    entries: list[tuple[str, bytes, bytes]]
    server_ms: float
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found: registrations by member, new heartbeats, reservations by router."""

    registrations: Mapping[str, bytes | None]
    heartbeats: HeartbeatsRead
    reservations: Mapping[str, Renewed]


class RedisConnection:
    """Every method raises redis.RedisError or OSError when the server is away, slow or refuses; nothing is retried.

    A name under which something of another type lies costs only what would lie there: it reads as WRONG_TYPE.
    The socket timeout bounds each read and write: a hung server must not hold the follower for long (C27).
    """

    def __init__(self, url: str, keys: RedisKeys):
        """Raises ValueError for a malformed URL."""
        self._keys = keys
        self._redis: Any = Redis.from_url(
            url,
            socket_timeout=SOCKET_TIMEOUT_SECONDS,
            socket_connect_timeout=SOCKET_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )

    def ping(self) -> None:
        self._redis.ping()

    def announce(self, router_id: str, reservations: bytes) -> Announced:
        """Leaves this router's reservations, unless the server is at the limit of its memory. A set of names that is
        no set is removed: who lives announces itself."""
        keys = self._keys
        pipe = self._redis.pipeline(transaction=False)
        pipe.set(keys.reservations(router_id), reservations, px=int(LEASE_SECONDS * 1000))
        pipe.sadd(keys.routers, router_id)
        pipe.pexpire(keys.routers, int(HISTORY_TTL_SECONDS * 1000))
        pipe.pexpire(keys.policy, int(HISTORY_TTL_SECONDS * 1000))
        pipe.smembers(keys.routers)
        pipe.smembers(keys.members)
        pipe.get(keys.policy)
        *_, routers, members, policy = _answers(pipe)
        removed = [name for name, found in ((keys.routers, routers), (keys.members, members)) if found is WRONG_TYPE]
        if removed:
            self._redis.delete(*removed)
        others = [name for name in _names(routers) if name != router_id]
        return Announced(_names(members), others, policy, removed)

    def store_policy(self, setting: bytes) -> None:
        self._redis.set(self._keys.policy, setting, px=int(HISTORY_TTL_SECONDS * 1000))

    def look(self, members: Sequence[str], routers: Sequence[str], heartbeats_after: str = "0-0") -> Look:
        """Registrations of these members, reservations of these routers, and the heartbeats behind that entry id."""
        keys = self._keys
        renewed = [keys.reservations(router) for router in routers]
        pipe = self._redis.pipeline(transaction=False)
        for member in members:
            pipe.get(keys.registration(member))
        for name in renewed:
            pipe.get(name)
            pipe.pttl(name)
        pipe.xread({keys.heartbeats: heartbeats_after}, count=HEARTBEATS_PER_READ)
        pipe.time()
        answers = iter(_answers(pipe))
        registrations = {member: next(answers) for member in members}
        records = [Renewed(next(answers), max(0.0, LEASE_SECONDS - next(answers) / 1000)) for _ in renewed]
        found, (seconds, microseconds) = next(answers), next(answers)
        if found is WRONG_TYPE:
            self._redis.delete(keys.heartbeats)  # who lives writes it anew
        beats = [] if found is WRONG_TYPE or not found else _entries(found[0][1])
        return Look(
            registrations,
            HeartbeatsRead(beats, seconds * 1000 + microseconds / 1000, found is WRONG_TYPE),
            dict(zip(routers, records, strict=True)),
        )

    def snapshot(self, member: str, ranges: Iterable[int]) -> list[bytes | None]:
        """The fields that `snapshot.field_names(ranges)` names, of one moment; None for one that is not there.

        Raises WireError where something else than a hash lies there.
        """
        try:
            fields: list[bytes | None] = self._redis.hmget(self._keys.snapshot(member), field_names(ranges))
        except ResponseError as error:
            raise WireError(f"not a snapshot: {error}") from error
        return fields

    def batches(self, member: str, first_seq: int, last_seq: int) -> list[bytes]:
        """Of the stream, in order; fewer where some are not there."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.xrange(self._keys.stream(member), min=f"{first_seq}-0", max=f"{last_seq}-0")
        (entries,) = _answers(pipe)
        return [WRONG_TYPE] if entries is WRONG_TYPE else [data for _, data in _batches(entries)]

    def read(self, positions: Mapping[str, str], block_ms: int) -> dict[str, list[tuple[str, bytes]] | None]:
        """New stream entries (id, batch) by member, behind the entry ids given; waits up to `block_ms` for one.
        None where something else than a stream lies."""
        members = {self._keys.stream(member).encode(): member for member in positions}
        streams = {name: positions[member] for name, member in members.items()}
        try:
            found = self._redis.xread(streams, count=ENTRIES_PER_READ, block=block_ms) or []
        except ResponseError as error:
            if not _is_wrong_type(error):
                raise
            found = self._read_each(streams)
        return {members[name]: None if entries is WRONG_TYPE else _batches(entries) for name, entries in found}

    def _read_each(self, streams: Mapping[bytes, str]) -> list[Any]:
        """As XREAD of all would answer if it did not refuse all for the sake of one that is no stream."""
        pipe = self._redis.pipeline(transaction=False)
        for name, position in streams.items():
            pipe.xread({name: position}, count=ENTRIES_PER_READ)
        found: list[Any] = []
        for name, answer in zip(streams, _answers(pipe), strict=True):
            found += [(name, WRONG_TYPE)] if answer is WRONG_TYPE else answer or []
        return found

    def declare_dead(self, member: str) -> None:
        """The other routers drop it at their next poll; if it lives it registers again (see `RedisKeys`)."""
        self._redis.set(self._keys.registration(member), TOMBSTONE, px=int(TOMBSTONE_SECONDS * 1000), xx=True)

    def forget(self, members: Iterable[str] = (), routers: Iterable[str] = ()) -> None:
        """Takes names out of the sets whose keys expired long ago."""
        pipe = self._redis.pipeline(transaction=False)
        for member in members:
            pipe.srem(self._keys.members, member)
        for router_id in routers:
            pipe.srem(self._keys.routers, router_id)
            pipe.delete(self._keys.reservations(router_id))
        pipe.execute()

    def close(self) -> None:
        self._redis.close()


def _answers(pipe: Any) -> list[Any]:
    """WRONG_TYPE in place of the error of that name; any other error is raised.

    But not that a server at the limit of its memory took nothing new: what was read beside that is worth as much.
    """
    answers = pipe.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception) and not _is_wrong_type(answer) and not isinstance(answer, OutOfMemoryError):
            raise answer
    return [WRONG_TYPE if isinstance(answer, Exception) else answer for answer in answers]


def _batches(entries: Iterable[tuple[bytes, Mapping[bytes, bytes] | None]]) -> list[tuple[str, bytes]]:
    return [(entry_id.decode(), (fields or {}).get(b"b", b"")) for entry_id, fields in entries]


def _entries(entries: Iterable[tuple[bytes, Mapping[bytes, bytes] | None]]) -> list[tuple[str, bytes, bytes]]:
    return [(id_.decode(), (fields or {}).get(b"m", b""), (fields or {}).get(b"b", b"")) for id_, fields in entries]


def _is_wrong_type(error: Exception) -> bool:
    return isinstance(error, ResponseError) and "WRONGTYPE" in str(error)


def _names(raw: Iterable[bytes]) -> list[str]:
    """Sorted; a name that is not UTF-8 is nobody's."""
    return sorted(name.decode() for name in raw if _is_utf8(name))


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
