"""Keeps a router's state in step with Redis."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping

from redis import RedisError

from cache.block_hasher import BlockHasher
from cache.key_set import ALL_RANGES
from cache.wire import records as wire
from cache.wire.fields import WireError
from cache.wire.redis_keys import HEARTBEAT_SECONDS, RedisKeys
from cache.wire.snapshot import Snapshot
from router.following.policy_agreement import PolicyAgreement
from router.following.poll_reader import PollReader
from router.following.redis_connection import RedisConnection
from router.following.repair import RangeRepair
from router.following.stream import FollowedStream
from router.metrics import RouterMetrics
from router.policy_switch import PolicySwitch
from router.router_state import RouterState
from router.running_set import RunningSet

POLL_SECONDS = 0.1
RETRY_SECONDS = 0.25
STOP_SECONDS = 2.0
CATCH_UP_SECONDS = 2.0
"""A new router waits at most so long for the batches behind the snapshots before it calls itself ready."""

logger = logging.getLogger(__name__)


class RedisFollower:
    """One thread owns the connection. Each turn of its loop polls (members, leases, heartbeats, reservations of other
    routers), joins and resyncs who needs it, then reads the streams until the next poll is due.

    A member joins with its snapshot and is followed from there (C14); a missing batch loads the snapshot again, a
    digest that differs only the range of keys that it stands for (C20). Malformed records are dropped and counted. When
    Redis is away the state stays as it is and grows stale; no request ever waits for anything here (C27).
    """

    def __init__(
        self,
        url: str,
        keys: RedisKeys,
        hasher: BlockHasher,
        state: RouterState,
        running_set: RunningSet,
        policy: PolicySwitch,
        metrics: RouterMetrics,
        router_id: str,
        clock: Callable[[], float],
    ):
        """Raises ValueError for a malformed URL."""
        self._connection = RedisConnection(url, keys)
        self._state, self._running_set, self._metrics, self._clock = state, running_set, metrics, clock
        self._reader = PollReader(hasher, state, metrics, router_id)
        self._repair = RangeRepair(self._connection, state, metrics)
        self._agreement = PolicyAgreement(policy, self._connection)
        self._followed: dict[str, FollowedStream] = {}
        self._failed: deque[str] = deque()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._connected = False
        self._registered: Mapping[str, bytes | None] = {}
        self._poll_at = self._ready_at = self._look_at = 0.0

    @property
    def connected(self) -> bool:
        """Whether the last exchange with Redis went well."""
        return self._connected

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="redis-follower", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None

    def replica_failed(self, replica_id: str) -> None:
        """The other routers are told, soon and from the follower's thread."""
        self._failed.append(replica_id)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except Exception as error:  # whatever it was: the thread lives, and the ladder says that nothing is fresh
                self._lose(error)
                self._stopping.wait(RETRY_SECONDS)
        if self._connected:
            try:
                self._connection.forget(routers=[self._reader.router_id])
            except (RedisError, OSError) as error:
                logger.warning("could not remove this router's keys, they expire by themselves: %s", error)
        self._connection.close()

    def _lose(self, error: Exception) -> None:
        if self._connected or not isinstance(error, RedisError | OSError):
            logger.warning("routing without Redis until it is back: %s: %s", type(error).__name__, error)
        self._connected = False
        self._poll_at = self._look_at = 0.0

    def _turn(self) -> None:
        if not self._connected:
            self._connection.ping()  # a hung server executes later what was sent to it: let that be nothing but a PING
            self._connected = True
            self._reader.forget_heartbeats()
            self._ready_at = self._clock() + CATCH_UP_SECONDS
            logger.info("following Redis")
        while self._failed:
            for member in self._reader.members_of(self._failed.popleft()):
                self._connection.declare_dead(member)
        if self._clock() >= self._poll_at:
            self._poll()
            self._poll_at = self._clock() + POLL_SECONDS
        wait = max(0.001, self._poll_at - self._clock())
        self._read_streams(wait)

    def _poll(self) -> None:
        own = self._reader.own_reservations(self._clock())
        announced = self._connection.announce(self._reader.router_id, own)
        for name in announced.removed:
            logger.warning("%s was no set of names and is removed", name)
            self._metrics.count_dropped("malformed")
        self._agreement.agree(self._reader.read_policy(announced.policy))
        renew = self._clock() >= self._look_at or announced.members != list(self._registered)
        look = self._connection.look(
            announced.members if renew else [], announced.routers, self._reader.heartbeats_after
        )
        now = self._clock()
        if renew:
            self._look_at, self._registered = now + HEARTBEAT_SECONDS, look.registrations
            for member in self._reader.update_members(look.registrations, now):
                self._followed.pop(member, None)
        heartbeats = self._reader.take_heartbeats(look.heartbeats, now)
        for member, registration in self._reader.members.items():
            if member in self._registered:
                self._check(member, registration, heartbeats.get(member), now)
        self._reader.take_reservations(look.reservations, now)
        gone_members, gone_routers = self._reader.long_gone(self._registered, look.reservations, now)
        if gone_members or gone_routers:
            self._connection.forget(gone_members, gone_routers)
        self._state.tend(self._running_set.replicas, now)
        self._state.sweep()
        if self._state.last_synced is not None or self._clock() >= self._ready_at or not self._behind(heartbeats):
            self._state.last_synced = self._clock()

    def _behind(self, heartbeats: Mapping[str, wire.ReplicaHeartbeat]) -> bool:
        """Whether batches that were sent before this poll are not read yet: snapshots alone may be old."""
        return any(
            not stream.broken and member in heartbeats and stream.seq < heartbeats[member].last_seq
            for member, stream in self._followed.items()
        )

    def _check(
        self,
        member: str,
        registration: wire.ReplicaRegistration,
        heartbeat: wire.ReplicaHeartbeat | None,
        now: float,
    ) -> None:
        """Joins a member that is not followed yet, and repairs one of which something was lost."""
        stream = self._followed.get(member)
        stats = self._state.stats(registration)
        if stream is None or stats is None:
            self._load_snapshot(member, registration, now)
        elif stream.broken or (heartbeat is not None and stream.lost_batches(heartbeat)):
            self._resync(member, stream, now)
        elif heartbeat is not None and heartbeat.last_seq == stream.seq and now >= stream.resync_at:
            self._repair.compare(member, stream, heartbeat, stats, now)

    def _resync(self, member: str, stream: FollowedStream, now: float) -> None:
        """An older snapshot than what is known already would only take away from it."""
        if now < stream.resync_at:
            return
        if self._load_snapshot(member, stream.registration, now, newer_than=stream.seq):
            self._metrics.count_resync("gap")
        else:
            stream.note_repair(now)

    def _load_snapshot(
        self, member: str, registration: wire.ReplicaRegistration, now: float, newer_than: int = -1
    ) -> bool:
        if not self._state.believes(registration.replica_id, now):
            return False
        try:
            fields = self._connection.snapshot(member, ALL_RANGES)
            if not any(fields):
                return False
            snapshot = Snapshot.from_fields(fields, ALL_RANGES)
        except WireError:
            self._metrics.count_dropped("malformed")
            return False
        if snapshot.seq <= newer_than:
            return False
        slot = self._state.load_slot(snapshot.keys(), snapshot.colder)
        if not self._state.adopt(registration, slot, now):
            return False
        before = self._followed.get(member)
        self._followed[member] = FollowedStream.from_snapshot(registration, snapshot.seq, now, before)
        return True

    def _read_streams(self, wait: float) -> None:
        now = self._clock()
        positions = {member: stream.read_id for member, stream in self._followed.items() if stream.readable(now)}
        if not positions:
            self._stopping.wait(wait)
            return
        for member, entries in self._connection.read(positions, block_ms=max(1, int(wait * 1000))).items():
            stream = self._followed[member]
            if entries is None:
                stream.note_unreadable(now)
                self._metrics.count_dropped("malformed")
                continue
            for entry_id, data in entries:
                stream.read_id = entry_id
                self._take_batch(stream, data)
            if stream.broken:
                self._resync(member, stream, self._clock())

    def _take_batch(self, stream: FollowedStream, data: bytes) -> None:
        try:
            batch = wire.decode_events(data)
        except WireError:
            self._metrics.count_dropped("malformed")
            stream.broken = True
            return
        if stream.accepts(batch) and not self._state.apply(stream.registration, batch.events, self._clock()):
            stream.broken = True  # it failed here a moment ago: what comes now is not applied, it joins again
