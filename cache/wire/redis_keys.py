"""Names of the shared-memory keys, and how long each lives without its owner."""

from dataclasses import dataclass
from hashlib import blake2b

KEY_SCHEME_VERSION = 3
"""Part of every name: processes that would write other types under the same names do not meet.
Raised where a name's type or meaning changes; where only its bytes do, `fields.WIRE_VERSION` is."""

HEARTBEAT_SECONDS = 0.25
"""How often a replica renews its lease and its load."""
LEASE_SECONDS = 2.0
"""Life of a registration, a heartbeat and a router's reservations after the last renewal: the owner is gone then."""
HISTORY_TTL_SECONDS = 60.0
"""Life of streams, snapshots and member sets: longer than a lease, so that a hiccup does not cost the history."""
TOMBSTONE_SECONDS = 10.0
"""How long the mark of a replica that a router saw dying stands."""

TOMBSTONE = b"gone"
"""Stands in a registration's place when a router saw the replica die. A replica that lives overwrites it."""


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """All key names of one model. Every key expires by itself when nobody renews it.

    fingerprint: identity of the weights; models never share a key (C39, C44).
    All names carry one cluster hash tag (the braces), so that they lie in one slot of a Redis cluster (C24).
    A `member` is one incarnation of a replica: a replica that restarts in place is another member (42, C19).
    """

    fingerprint: str

    @property
    def prefix(self) -> str:
        tag = blake2b(self.fingerprint.encode(), digest_size=12).hexdigest()
        return f"warmlane:{KEY_SCHEME_VERSION}:{{{tag}}}"

    @staticmethod
    def member(replica_id: str, incarnation: str) -> str:
        return f"{replica_id}/{incarnation}"

    @property
    def members(self) -> str:
        """Set of members that announced themselves."""
        return f"{self.prefix}:members"

    @property
    def routers(self) -> str:
        """Set of routers that announced themselves."""
        return f"{self.prefix}:routers"

    @property
    def policy(self) -> str:
        """`wire.PolicySetting`: the policy that somebody set while the cluster ran. Every router renews it."""
        return f"{self.prefix}:policy"

    def registration(self, member: str) -> str:
        """`wire.ReplicaRegistration`, or TOMBSTONE. Its existence is the lease."""
        return f"{self.prefix}:registration:{member}"

    @property
    def heartbeats(self) -> str:
        """Stream of all members' `wire.ReplicaHeartbeat` (`b`) with the member's name (`m`). The id tells its age on
        the server's clock; what a router reads of it at each poll is only what is new."""
        return f"{self.prefix}:heartbeats"

    def stream(self, member: str) -> str:
        """Stream of `wire.EventBatch`; the entry with sequence number n has the id `n-0`."""
        return f"{self.prefix}:events:{member}"

    def snapshot(self, member: str) -> str:
        """Hash of `snapshot.Snapshot`: the key set at one sequence number, one field for each range of keys."""
        return f"{self.prefix}:snapshot:{member}"

    def reservations(self, router_id: str) -> str:
        """`wire.ReservationList`: what one router sent out a moment ago."""
        return f"{self.prefix}:reservations:{router_id}"
