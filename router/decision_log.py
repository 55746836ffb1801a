"""The last decisions, for people who ask why."""

from collections import deque
from collections.abc import Iterator

from router.decision import Decision


class DecisionLog:
    """Bounded; the newest last. A request that was routed again has one entry per decision."""

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
        self._decisions.append(decision)

    def find(self, request_id: str) -> Decision | None:
        """The latest decision for this request."""
        return next((d for d in reversed(self._decisions) if d.request_id == request_id), None)
