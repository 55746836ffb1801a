"""Who is in the cluster, from what one look at Redis found."""

from collections.abc import Mapping
from dataclasses import dataclass

from cache.redis_keys import RedisKeys
from cache.wire import ReplicaRegistration
from router.ladder import STALE_BOUND_SECONDS

GRACE_SECONDS = 0.5
"""After a flush or a hang the replicas come back one by one within a heartbeat: so long nobody is taken for dead."""
MAX_SUPERSEDED = 10_000


@dataclass(slots=True)
class Member:
    registration: ReplicaRegistration
    missing_since: float | None = None


class Membership:
    """Remembers members from poll to poll and decides who left.

    One lease that ends while others are renewed is a death. All leases gone at once are the store's trouble, not
    everybody's death (C23): then all stay until the mirror is too old to be used anyway. Of two incarnations of one
    replica the later one counts (42, C19), and the earlier one never again: a process that hung and wakes up, while
    its successor is away for a moment, must not take its place (58).
    """

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._superseded: dict[str, None] = {}  # names, the oldest first

    @property
    def registrations(self) -> Mapping[str, ReplicaRegistration]:
        return {name: member.registration for name, member in self._members.items()}

    def update(
        self, found: Mapping[str, ReplicaRegistration], declared_dead: set[str], now: float
    ) -> list[ReplicaRegistration]:
        """found: registrations by member. declared_dead: members with a tombstone. Returns who left."""
        newest: dict[str, ReplicaRegistration] = {}
        for name, registration in found.items():
            if name in self._superseded:
                continue
            other = newest.get(registration.replica_id)
            if other is None or registration.started_at > other.started_at:
                newest[registration.replica_id] = registration
        for registration in newest.values():
            name = RedisKeys.member(registration.replica_id, registration.incarnation)
            self._members[name] = Member(registration)
        patience = GRACE_SECONDS if found else STALE_BOUND_SECONDS
        left = [name for name in self._members if self._has_left(name, newest, declared_dead, now, patience)]
        for name in left:
            if self._members[name].registration.replica_id in newest:
                self._supersede(name)
        return [self._members.pop(name).registration for name in left]

    def _supersede(self, name: str) -> None:
        self._superseded[name] = None
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
