"""Where one router stands in one member's stream of block events."""

from dataclasses import dataclass

from cache.wire.records import EventBatch, ReplicaHeartbeat, ReplicaRegistration
from router.index.mirror import SlotStats

MIN_RESYNC_SECONDS = 0.25
MAX_RESYNC_SECONDS = 8.0


@dataclass(slots=True)
class FollowedStream:
    """All rules that say "something was lost" stand here (C14, C20, C21).

    seq: the last batch that the mirror holds. read_id: the last stream entry that was read, malformed ones included.
    broken: a batch was missing; nothing is applied any more until the next snapshot is loaded.
    resync_at: when a snapshot may be loaded, or a range repaired, again. repaired_at: seq at the last such repair.
    read_at: when it may be read again, after something else than a stream was found under its name.
    lagging_at: seq at the last poll whose heartbeat was ahead of us; if
    we did not move until the next one, what that heartbeat speaks of is not in the stream any more.
    """

    registration: ReplicaRegistration
    seq: int
    read_id: str
    resync_at: float
    resync_seconds: float = MIN_RESYNC_SECONDS
    broken: bool = False
    lagging_at: int | None = None
    repaired_at: int | None = None
    read_at: float = float("-inf")
    unreadable_seconds: float = 0.0

    @classmethod
    def from_snapshot(
        cls, registration: ReplicaRegistration, seq: int, now: float, before: "FollowedStream | None" = None
    ) -> "FollowedStream":
        """before: what was followed until now; a snapshot that brings nothing new makes the next attempt wait."""
        wait = MIN_RESYNC_SECONDS
        if before is not None and seq <= before.seq:
            wait = min(MAX_RESYNC_SECONDS, 2 * before.resync_seconds)
        return cls(registration, seq, f"{seq}-0", now + wait, wait)

    def readable(self, now: float) -> bool:
        """Whether what comes next in the stream is of any use, and may be asked for."""
        return not self.broken and now >= self.read_at

    def note_unreadable(self, now: float) -> None:
        """Something else lies under its name. Until that is put right it is looked for less and less often."""
        self.unreadable_seconds = min(MAX_RESYNC_SECONDS, max(MIN_RESYNC_SECONDS, 2 * self.unreadable_seconds))
        self.read_at = now + self.unreadable_seconds

    def note_repair(self, now: float, was_full: bool = False) -> None:
        """Ranges were repaired, or could not be, or there was no newer snapshot: if that is needed again before a batch
        has come, it waits. was_full: the mirror was too small for it, and may be again with each batch."""
        again = self.repaired_at == self.seq
        self.resync_seconds = min(MAX_RESYNC_SECONDS, 2 * self.resync_seconds) if again else MIN_RESYNC_SECONDS
        if was_full:
            self.resync_seconds = MAX_RESYNC_SECONDS
        self.repaired_at, self.resync_at = self.seq, now + self.resync_seconds

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

    def drifted_ranges(self, heartbeat: ReplicaHeartbeat, stats: SlotStats) -> list[int]:
        """Ranges of the key space in which the mirror is wrong. Only at the same sequence number can the two be
        compared: none at another."""
        if heartbeat.last_seq != self.seq:
            return []
        pairs = zip(heartbeat.digests, stats.digests, strict=True)
        return [number for number, (theirs, ours) in enumerate(pairs) if theirs != ours]
