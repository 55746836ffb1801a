"""Who is in the cluster, from what one look at Redis found."""

from collections.abc import Mapping
from dataclasses import dataclass

from cache.wire.records import ReplicaRegistration
from cache.wire.redis_keys import RedisKeys
from router.ladder import STALE_BOUND_SECONDS

GRACE_SECONDS = 0.5
"""After a flush or a hang the replicas come back one by one within a heartbeat: so long nobody is taken for dead."""
RETURN_SECONDS = 15.0
"""A successor that is gone for so long and never had a heartbeat was none."""
MAX_SUPERSEDED = 10_000


@dataclass(slots=True)
class Member:
    """seen_alive: whether there was a heartbeat. left_at: when it was taken for gone."""

    registration: ReplicaRegistration
    missing_since: float | None = None
    seen_alive: bool = False
    left_at: float | None = None

    def was_none(self, now: float) -> bool:
        """Whether this was a registration without a replica."""
        return not self.seen_alive and self.left_at is not None and now - self.left_at >= RETURN_SECONDS


class Membership:
    """Remembers members from poll to poll and decides who left.

    One lease that ends while others are renewed is a death. All leases gone at once are the store's trouble, not
    everybody's death (C23): then all stay until the mirror is too old to be used anyway. Of two incarnations of one
    replica the later one counts (42, C19), and the earlier one never again: a process that hung and wakes up, while
    its successor is away for a moment, must not take its place (58). Only a successor that was never alive, and is
    long gone, has superseded nobody: one wrong record must not keep a living replica out for ever.
    """

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._superseded: dict[str, Member] = {}  # name -> who took its place; the oldest first

    @property
    def registrations(self) -> Mapping[str, ReplicaRegistration]:
        return {name: member.registration for name, member in self._members.items()}

    def note_heartbeat(self, name: str) -> None:
        if name in self._members:
            self._members[name].seen_alive = True

    def update(
        self, found: Mapping[str, ReplicaRegistration], declared_dead: set[str], now: float
    ) -> list[ReplicaRegistration]:
        """found: registrations by member. declared_dead: members with a tombstone. Returns who left."""
        newest: dict[str, ReplicaRegistration] = {}
        for name, registration in found.items():
            if self._is_superseded(name, now):
                continue
            other = newest.get(registration.replica_id)
            if other is None or registration.started_at > other.started_at:
                newest[registration.replica_id] = registration
        for registration in newest.values():
            name = RedisKeys.member(registration.replica_id, registration.incarnation)
            member = self._members.setdefault(name, Member(registration))
            member.registration, member.missing_since = registration, None
        patience = GRACE_SECONDS if found else STALE_BOUND_SECONDS
        left = [name for name in self._members if self._has_left(name, newest, declared_dead, now, patience)]
        for name in left:
            self._members[name].left_at = now
            successor = newest.get(self._members[name].registration.replica_id)
            if successor is not None:
                self._supersede(name, self._members[RedisKeys.member(successor.replica_id, successor.incarnation)])
        return [self._members.pop(name).registration for name in left]

    def _is_superseded(self, name: str, now: float) -> bool:
        successor = self._superseded.get(name)
        if successor is not None and successor.was_none(now):
            del self._superseded[name]
            return False
        return successor is not None

    def _supersede(self, name: str, successor: Member) -> None:
        self._superseded[name] = successor
        if len(self._superseded) > MAX_SUPERSEDED:
            del self._superseded[next(iter(self._superseded))]

    def _has_left(
        self,
        name: str,
        newest: Mapping[str, ReplicaRegistration],
        declared_dead: set[str],
        now: float,
        patience: float,
    ) -> bool:
        member = self._members[name]
        successor = newest.get(member.registration.replica_id)
        if successor is not None:
            return successor.incarnation != member.registration.incarnation
        if name in declared_dead:
            return True
        if member.missing_since is None:
            member.missing_since = now
        return now - member.missing_since >= patience
