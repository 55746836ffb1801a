"""The commands with which one replica incarnation writes itself into Redis."""

from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cache.wire import records as wire
from cache.wire.redis_keys import HISTORY_TTL_SECONDS, LEASE_SECONDS, RedisKeys
from cache.wire.snapshot import Snapshot

STREAM_MAX_BATCHES = 4096
"""About so many batches stay in the stream. A snapshot is written four times as often, so none is missed (C21)."""
MAX_HEARTBEATS = 8192
"""Of the whole fleet, about 6 MB: two seconds of 1,000 replicas."""

_LEASE_MS = int(LEASE_SECONDS * 1000)
_HISTORY_MS = int(HISTORY_TTL_SECONDS * 1000)


class RedisPublication:
    """Synchronous and without state of its own: each method is one round trip.

    Every method raises redis.RedisError or OSError when the server is away, slow or refuses; nothing is retried here.
    """

    def __init__(self, url: str, keys: RedisKeys, registration: wire.ReplicaRegistration, timeout_seconds: float):
        """Raises WireError for a registration that cannot be written, ValueError for a malformed URL."""
        self._keys = keys
        self._registration = wire.encode_registration(registration)
        self._member = keys.member(registration.replica_id, registration.incarnation)
        # The timeout bounds each read and write: a hung server must not hold the thread (C27).
        self._redis: Any = Redis.from_url(
            url,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )

    def connect(self) -> None:
        """A hung server accepts connections and executes later what lies in them: let that be nothing but a PING."""
        self._redis.ping()

    def register(self, snapshot: Snapshot) -> None:
        """Announces the member with its whole key set. The batch `snapshot.seq + 1` is written here, and empty: a
        router that followed an earlier stretch of the stream sees a hole and loads the snapshot. So what lay there
        before is not needed any more, and goes, whoever wrote it: entries of other numbers, or no stream at all."""
        keys, member = self._keys, self._member
        pipe = self._redis.pipeline(transaction=True)
        pipe.delete(keys.snapshot(member), keys.stream(member))
        pipe.hset(keys.snapshot(member), mapping=snapshot.to_fields())
        pipe.pexpire(keys.snapshot(member), _HISTORY_MS)
        self._append(pipe, wire.EventBatch(snapshot.seq + 1, ()))
        pipe.pexpire(keys.stream(member), _HISTORY_MS)
        pipe.set(keys.registration(member), self._registration, px=_LEASE_MS)
        pipe.sadd(keys.members, member)
        pipe.pexpire(keys.members, _HISTORY_MS)
        pipe.execute()

    def send(self, batch: wire.EventBatch) -> None:
        self._append(self._redis, batch)

    def write_snapshot(self, snapshot: Snapshot) -> bool:
        """Writes these ranges over those that lie there. False where some did not: the snapshot is not whole."""
        name = self._keys.snapshot(self._member)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(name, mapping=snapshot.to_fields())
        pipe.pexpire(name, _HISTORY_MS)
        num_new, _ = pipe.execute()
        return bool(num_new == 0)

    def beat(self, heartbeat: wire.ReplicaHeartbeat) -> bool:
        """Renews every key. False where something was missing or a router had declared this member dead: then the
        member must be registered again."""
        keys, member = self._keys, self._member
        pipe = self._redis.pipeline(transaction=True)
        pipe.set(keys.registration(member), self._registration, px=_LEASE_MS, get=True)
        pipe.xadd(
            keys.heartbeats,
            {b"m": member.encode(), b"b": wire.encode_heartbeat(heartbeat)},
            maxlen=MAX_HEARTBEATS,
            approximate=True,
        )
        pipe.pexpire(keys.heartbeats, _HISTORY_MS)
        pipe.sadd(keys.members, member)
        pipe.pexpire(keys.members, _HISTORY_MS)
        pipe.pexpire(keys.stream(member), _HISTORY_MS)
        pipe.pexpire(keys.snapshot(member), _HISTORY_MS)
        before, *_, stream_renewed, snapshot_renewed = pipe.execute()
        return bool(before == self._registration and stream_renewed and snapshot_renewed)

    def hold(self) -> None:
        """Keeps this member's lease and history where the server is at the limit of its memory and takes nothing new:
        to prolong a life it needs no memory. Not where a router has declared this member dead."""
        keys, member = self._keys, self._member
        if self._redis.get(keys.registration(member)) != self._registration:
            return
        pipe = self._redis.pipeline(transaction=True)
        pipe.pexpire(keys.registration(member), _LEASE_MS)
        for name in (keys.members, keys.stream(member), keys.snapshot(member)):
            pipe.pexpire(name, _HISTORY_MS)
        pipe.execute()

    def remove(self) -> None:
        """The last member of a fleet takes the stream of heartbeats along."""
        keys, member = self._keys, self._member
        pipe = self._redis.pipeline(transaction=True)
        pipe.srem(keys.members, member)
        pipe.delete(keys.registration(member), keys.stream(member), keys.snapshot(member))
        pipe.smembers(keys.members)
        *_, left = pipe.execute()
        if not left:
            self._redis.delete(keys.heartbeats)

    def close(self) -> None:
        self._redis.close()

    def _append(self, client: Any, batch: wire.EventBatch) -> None:
        client.xadd(
            self._keys.stream(self._member),
            {b"b": wire.encode_events(batch)},
            id=f"{batch.seq}-0",
            maxlen=STREAM_MAX_BATCHES,
            approximate=True,
        )
