"""Which replicas a policy need not remember any more."""

from collections.abc import Sequence

from router.load.views import ReplicaView

FORGET_SECONDS = 60.0
"""Longer than a replica is passed over for one request or after one failure."""


class LastSeen:
    """When each replica was last a candidate. One that is not for long is gone for good: Ray gives each a new id."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._look_at = float("-inf")

    def update(self, replicas: Sequence[ReplicaView], now: float) -> list[str]:
        """The replicas that have just been found gone."""
        self._seen.update((replica.replica_id, now) for replica in replicas)
        if now < self._look_at:
            return []
        self._look_at = now + FORGET_SECONDS / 10
        gone = [replica_id for replica_id, seen in self._seen.items() if now - seen > FORGET_SECONDS]
        for replica_id in gone:
            del self._seen[replica_id]
        return gone
