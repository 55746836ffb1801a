"""Repairs the ranges of the key space in which the mirror and a replica differ, and leaves the others alone."""

import logging
from collections.abc import Collection

from cache.events import BlocksStored
from cache.key_set import KeySet
from cache.wire.fields import WireError
from cache.wire.records import ReplicaHeartbeat, ReplicaRegistration, decode_events
from cache.wire.snapshot import Snapshot
from router.following.redis_connection import ENTRIES_PER_READ, RedisConnection
from router.following.stream import FollowedStream
from router.index.mirror import SlotStats
from router.metrics import RouterMetrics
from router.router_state import RouterState

logger = logging.getLogger(__name__)


class RangeRepair:
    """Of the follower's thread, which applies nothing else meanwhile: so the mirror stands still at `stream.seq`.

    What the replica holds in these ranges at that number is its snapshot of them and the batches since then, read once
    more from its stream. The heartbeat that told of the difference has a digest of the same moment, so the result is
    checked before the mirror is touched; then the mirror gets what it lacks and loses what it has too much, and how
    many blocks were wrong is known exactly.
    """

    def __init__(self, connection: RedisConnection, state: RouterState, metrics: RouterMetrics):
        self._connection, self._state, self._metrics = connection, state, metrics

    def compare(
        self, member: str, stream: FollowedStream, heartbeat: ReplicaHeartbeat, stats: SlotStats, now: float
    ) -> None:
        """Both speak of the same moment. Where it cannot be repaired now, a mirror with some wrong blocks is better
        than an older snapshot. A mirror that was full is filled again once there is room, and seldom."""
        ranges = stream.drifted_ranges(heartbeat, stats)
        was_full = stats.num_refused > 0
        if not ranges:
            if was_full:  # what it had no room for is gone there, too
                self._state.reset_refused(stream.registration)
            return
        if was_full and not self._state.has_room(heartbeat.num_keys - stats.num_keys):
            return
        num_wrong = self._repair(member, stream, heartbeat, ranges, now)
        stream.note_repair(now, was_full)
        if num_wrong is None:
            logger.warning("%s: %d ranges differ and cannot be repaired yet", member, len(ranges))
            return
        if not was_full:
            self._metrics.count_drift(num_wrong)
        self._metrics.count_resync("room" if was_full else "drift")

    def _repair(
        self, member: str, stream: FollowedStream, heartbeat: ReplicaHeartbeat, ranges: Collection[int], now: float
    ) -> int | None:
        """How many blocks were wrong, or None where Redis does not hold what would tell. Raises as the connection."""
        truth = self._truth(member, stream.seq, sorted(ranges))
        if truth is None or any(truth.digests[number] != heartbeat.digests[number] for number in ranges):
            return None
        return self._correct(stream.registration, truth, now)

    def _correct(self, registration: ReplicaRegistration, truth: KeySet, now: float) -> int | None:
        """Makes the mirror hold exactly `truth` in its ranges. None where this incarnation does not count any more."""
        self._state.reset_refused(registration)  # what still finds no room is counted anew
        before = self._state.stats(registration)
        placed = truth.colder_keys(truth.ranges)
        held = [BlocksStored(tuple(truth)), *(BlocksStored(tuple(keys), tier) for tier, keys in placed.items())]
        if before is None or not self._state.apply(registration, held, now, make_room=False):
            return None
        between = self._state.stats(registration)
        if between is not None and any(between.digests[number] != truth.digests[number] for number in truth.ranges):
            # Who holds what is not kept by replica: a walk over these ranges of all, outside the lock.
            extra = [key for key in self._state.published_keys(truth.ranges) if key not in truth]
            self._state.withdraw(registration, extra)
        after = self._state.stats(registration)
        if between is None or after is None:
            return None
        return between.num_keys - before.num_keys + between.num_keys - after.num_keys

    def _truth(self, member: str, seq: int, ranges: list[int]) -> KeySet | None:
        """These ranges after batch `seq`."""
        try:
            snapshot = Snapshot.from_fields(self._connection.snapshot(member, ranges), ranges)
            if snapshot.seq > seq:
                return None  # of a moment that the mirror has not reached
            truth, reached = snapshot.key_set(), snapshot.seq
            while reached < seq:
                entries = self._connection.batches(member, reached + 1, min(seq, reached + ENTRIES_PER_READ))
                for data in entries:
                    batch = decode_events(data)
                    if batch.seq != reached + 1:
                        return None
                    reached = batch.seq
                    for event in batch.events:
                        truth.apply(event)
                if not entries:
                    return None
        except WireError:
            self._metrics.count_dropped("malformed")
            return None
        return truth
