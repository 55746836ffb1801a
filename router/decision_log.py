"""The last decisions, for people who ask why."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from router.decision import Decision, ReplicaScore

MAX_SCORES = 64
"""Of one decision: the chosen replica and those that came closest. A fleet of 1,000 would fill the log with scores."""


class DecisionLog:
    """Bounded; the newest last. A request that was routed again has one entry per decision.

    Block keys are not kept: no explanation shows them (C36), and those of long prompts are megabytes.
    """

    def __init__(self, capacity: int = 1000):
        """Raises ValueError for a capacity below 1."""
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self._decisions: deque[Decision] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._decisions)

    def __iter__(self) -> Iterator[Decision]:
        return iter(self._decisions)

    def add(self, decision: Decision) -> None:
        self._decisions.append(replace(decision, block_keys=(), scores=_closest(decision)))

    def find(self, request_id: str) -> Decision | None:
        """The latest decision for this request."""
        return next((d for d in reversed(self._decisions) if d.request_id == request_id), None)


def _closest(decision: Decision) -> tuple[ReplicaScore, ...]:
    """In their own order: the chosen replica, then the lowest scores, then those that hold most."""
    if len(decision.scores) <= MAX_SCORES:
        return decision.scores

    def rank(score: ReplicaScore) -> tuple[bool, float, int]:
        lowest = score.score if score.score is not None else float("inf")
        return score.replica_id != decision.replica_id, lowest, -score.hit_blocks

    kept = {score.replica_id for score in sorted(decision.scores, key=rank)[:MAX_SCORES]}
    return tuple(score for score in decision.scores if score.replica_id in kept)
