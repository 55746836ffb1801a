"""Turns the bytes that one poll of Redis found into what the router's state is told."""

import time
from collections.abc import Callable, Mapping

from cache.block_hasher import BlockHasher
from cache.wire import records as wire
from cache.wire.fields import WireError
from cache.wire.redis_keys import TOMBSTONE, RedisKeys
from router.following.heartbeat_feed import HeartbeatFeed
from router.following.membership import Membership
from router.following.redis_connection import HeartbeatsRead, Renewed
from router.load.reservations import SentElsewhere
from router.metrics import RouterMetrics
from router.router_state import RouterState

FORGET_SECONDS = 10.0
"""A name whose record is gone for so long is taken out of the set of names."""
CLOCK_AHEAD_SECONDS = 300.0
"""No machine's clock is further ahead of ours: what claims to be from later than that was not written by a replica."""
REVISION_AHEAD_SECONDS = 86_400.0
"""The same for a policy's revision, which also grows where several are set by clocks that differ."""
SENT_LATELY_SECONDS = 2.0
MAX_RESERVATIONS = 2000


class PollReader:
    """Does no I/O. A record that is malformed, or belongs to another name, is dropped and counted once per change."""

    def __init__(
        self,
        hasher: BlockHasher,
        state: RouterState,
        metrics: RouterMetrics,
        router_id: str,
        wall_clock: Callable[[], float] = time.time,
    ):
        self.router_id = router_id
        self._wall_clock = wall_clock
        self._hasher, self._state, self._metrics = hasher, state, metrics
        self._membership = Membership()
        self._beats = HeartbeatFeed()
        self._without_member: set[str] = set()
        self._refused: dict[str, bytes] = {}
        self._gone_since: dict[str, float] = {}

    @property
    def members(self) -> Mapping[str, wire.ReplicaRegistration]:
        return self._membership.registrations

    def members_of(self, replica_id: str) -> list[str]:
        return [member for member, registration in self.members.items() if registration.replica_id == replica_id]

    def own_reservations(self, now: float) -> bytes:
        sent = self._state.sent_lately(now, SENT_LATELY_SECONDS, MAX_RESERVATIONS)
        return wire.encode_reservations(wire.ReservationList(self.router_id, sent))

    def update_members(self, registrations: Mapping[str, bytes | None], now: float) -> list[str]:
        """Returns the members that left; the state is told."""
        found: dict[str, wire.ReplicaRegistration] = {}
        declared_dead: set[str] = set()
        for member, data in registrations.items():
            if data == TOMBSTONE:
                declared_dead.add(member)
            elif data is not None and (registration := self._read_registration(member, data, now)) is not None:
                found[member] = registration
        left = self._membership.update(found, declared_dead, now)
        for registration in left:
            self._state.retire(registration, now)
        return [RedisKeys.member(registration.replica_id, registration.incarnation) for registration in left]

    def take_heartbeats(self, found: HeartbeatsRead, now: float) -> dict[str, wire.ReplicaHeartbeat]:
        """Returns the latest of each member that is not older than a lease; the state is told the new ones' loads."""
        new = self._beats.read(found, now)
        for _ in range(self._beats.take_malformed()):
            self._metrics.count_dropped("malformed")
        latest = self._beats.latest(now)
        members = self.members
        for member in new | (self._without_member & latest.keys()):
            registration, beat = members.get(member), latest.get(member)
            if registration is None or beat is None:
                self._without_member.add(member)
                continue
            self._without_member.discard(member)
            self._membership.note_heartbeat(member)
            self._state.on_heartbeat(registration.replica_id, beat.heartbeat.load, beat.written_at)
        self._without_member &= latest.keys()
        return {member: beat.heartbeat for member, beat in latest.items() if member in members}

    @property
    def heartbeats_after(self) -> str:
        """The last entry that was read of the stream of heartbeats."""
        return self._beats.position

    def forget_heartbeats(self) -> None:
        """Another server, perhaps: its ids are its own."""
        self._beats = HeartbeatFeed()

    def take_reservations(self, reservations: Mapping[str, Renewed], now: float) -> None:
        """What all other routers sent of late."""
        sent: list[SentElsewhere] = []
        for router_id, record in reservations.items():
            if record.data is None:
                continue
            try:
                entries = wire.decode_reservations(record.data).reservations
            except WireError:
                self._refuse(f"router {router_id}", record.data, "malformed")
                continue
            written_at = now - record.age_seconds
            sent += [SentElsewhere(e.replica_id, written_at - e.age_seconds, e.prefill_tokens, e.keys) for e in entries]
        self._state.set_others(sent, now)

    def read_policy(self, data: bytes | None) -> wire.PolicySetting | None:
        if data is None:
            return None
        try:
            setting = wire.decode_policy(data)
        except WireError:
            self._refuse("policy", data, "malformed")
            return None
        if setting.revision > (self._wall_clock() + REVISION_AHEAD_SECONDS) * 1e9:  # nobody could set another one
            self._refuse("policy", data, "malformed")
            return None
        return setting

    def long_gone(
        self, registrations: Mapping[str, bytes | None], reservations: Mapping[str, Renewed], now: float
    ) -> tuple[list[str], list[str]]:
        """Members and routers whose names stand in the sets while their records expired."""
        members = [name for name, data in registrations.items() if data is None]
        routers = [name for name, record in reservations.items() if record.data is None]
        self._gone_since = {name: self._gone_since.get(name, now) for name in (*members, *routers)}
        gone = {name for name, since in self._gone_since.items() if now - since > FORGET_SECONDS}
        return [name for name in members if name in gone], [name for name in routers if name in gone]

    def _read_registration(self, member: str, data: bytes, now: float) -> wire.ReplicaRegistration | None:
        try:
            registration = wire.decode_registration(data)
        except WireError:
            self._refuse(member, data, "malformed")
            return None
        is_late = (
            registration.started_at > self._wall_clock() + CLOCK_AHEAD_SECONDS
        )  # it would outdo all that live (58)
        if is_late or RedisKeys.member(registration.replica_id, registration.incarnation) != member:
            self._refuse(member, data, "malformed")
            return None
        if registration.block_size != self._hasher.block_size or not self._hasher.agrees_with(registration.canary):
            self._refuse(member, data, "foreign")  # its keys mean other blocks: routable, never warm (A30)
            self._state.mark_foreign(registration.replica_id, now)
            return None
        return registration

    def _refuse(self, name: str, data: bytes, reason: str) -> None:
        if len(self._refused) > 10_000:
            self._refused.clear()
        if self._refused.get(name) != data:
            self._refused[name] = data
            self._metrics.count_dropped(reason)
