"""What each replica was given to do in the last few minutes."""

from collections import deque

MAX_REQUESTS = 100_000


class RequestWindow:
    """Sums seconds of work per replica over a sliding window. Bounded: above MAX_REQUESTS the oldest leave early."""

    def __init__(self) -> None:
        self._sent: deque[tuple[float, str, float]] = deque()
        self._seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        """Requests in the window."""
        return len(self._sent)

    def add(self, replica_id: str, seconds: float, now: float) -> None:
        self._sent.append((now, replica_id, seconds))
        self._seconds[replica_id] = self._seconds.get(replica_id, 0.0) + seconds
        self._counts[replica_id] = self._counts.get(replica_id, 0) + 1
        if len(self._sent) > MAX_REQUESTS:
            self._drop_oldest()

    def expire(self, before: float) -> None:
        """Drops what was sent before this moment."""
        while self._sent and self._sent[0][0] < before:
            self._drop_oldest()

    def seconds(self, replica_id: str) -> float:
        return self._seconds.get(replica_id, 0.0)

    def forget(self, replica_id: str) -> None:
        if self._counts.pop(replica_id, 0):
            self._sent = deque(entry for entry in self._sent if entry[1] != replica_id)
            del self._seconds[replica_id]

    def _drop_oldest(self) -> None:
        _, replica_id, seconds = self._sent.popleft()
        self._counts[replica_id] -= 1
        self._seconds[replica_id] -= seconds
        if not self._counts[replica_id]:  # also ends what rounding left over
            del self._counts[replica_id], self._seconds[replica_id]
