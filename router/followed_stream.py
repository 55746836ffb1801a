"""Where one router stands in one member's stream of block events."""

from dataclasses import dataclass

from cache.wire import EventBatch, ReplicaHeartbeat, ReplicaRegistration
from router.index_mirror import SlotStats

MIN_RESYNC_SECONDS = 0.25
MAX_RESYNC_SECONDS = 8.0


@dataclass(slots=True)
class FollowedStream:
    """All rules that say "something was lost" stand here (C14, C20, C21).

    seq: the last batch that the mirror holds. read_id: the last stream entry that was read, malformed ones included.
    broken: a batch was missing; nothing is applied any more until the next snapshot is loaded.
    resync_at: when a snapshot may be loaded again. lagging_at: seq at the last poll whose heartbeat was ahead of us; if
    we did not move until the next one, what that heartbeat speaks of is not in the stream any more.
    """

    registration: ReplicaRegistration
    seq: int
    read_id: str
    resync_at: float
    resync_seconds: float = MIN_RESYNC_SECONDS
    broken: bool = False
    lagging_at: int | None = None

    @classmethod
    def from_snapshot(
        cls, registration: ReplicaRegistration, seq: int, now: float, before: "FollowedStream | None" = None
    ) -> "FollowedStream":
        """before: what was followed until now; a snapshot that brings nothing new makes the next attempt wait."""
        wait = MIN_RESYNC_SECONDS
        if before is not None and seq <= before.seq:
            wait = min(MAX_RESYNC_SECONDS, 2 * before.resync_seconds)
        return cls(registration, seq, f"{seq}-0", now + wait, wait)

    def accepts(self, batch: EventBatch) -> bool:
        """Whether this batch is the next one. Batches are applied in order or not at all."""
        if self.broken or batch.seq != self.seq + 1:
            self.broken = True
            return False
        self.seq = batch.seq
        return True

    def lost_batches(self, heartbeat: ReplicaHeartbeat) -> bool:
        """Whether batches that were sent before the last poll have still not come."""
        if heartbeat.last_seq <= self.seq:
            self.lagging_at = None
            return False
        lost = self.lagging_at == self.seq
        self.lagging_at = self.seq
        return lost

    def drift(self, heartbeat: ReplicaHeartbeat, stats: SlotStats) -> int:
        """At least so many blocks are wrong in the mirror; 0 while nothing can be said.

        Only at the same sequence number can the two be compared, and not where the mirror was full.
        """
        if heartbeat.last_seq != self.seq or stats.num_refused:
            return 0
        if heartbeat.digest == stats.digest and heartbeat.num_keys == stats.num_keys:
            return 0
        return max(1, abs(heartbeat.num_keys - stats.num_keys))
