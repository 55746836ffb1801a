"""What a simulated replica's heartbeats said."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from cache.wire.records import ReplicaLoad


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """load: as it was at measured_at. last_seq: number of the last event batch sent by then."""

    measured_at: float
    load: ReplicaLoad
    last_seq: int


class LoadHistory:
    """Heartbeats at offset, offset + period, …, read only when somebody asks or the load is about to change.

    Between two changes all heartbeats say the same, so one entry stands for a run of them:
    (number of its first, number of its last, load, last_seq).
    """

    def __init__(self, period: float, offset: float, measure: Callable[[], tuple[ReplicaLoad, int]]):
        """Raises ValueError for a period that is not above 0. measure: the load and the last batch's number now."""
        if not period > 0.0:
            raise ValueError(f"period must be above 0, got {period}")
        self._period, self._offset, self._measure = period, offset, measure
        self._runs: deque[tuple[int, int, ReplicaLoad, int]] = deque()
        self._next = 0
        self._due = offset

    def before_change(self, now: float) -> None:
        """To be called before the load changes at `now`: all heartbeats before `now` are of the load as it is."""
        if now > self._due:
            last = max(self._next, math.ceil((now - self._offset) / self._period) - 1)
            self._runs.append((self._next, last, *self._measure()))
            self._next = last + 1
            self._due = self._offset + self._next * self._period

    def latest(self, moment: float) -> Heartbeat | None:
        """The last heartbeat at or before `moment`; None before the first. Moments must not go back."""
        number = math.floor((moment - self._offset) / self._period)
        while len(self._runs) > 1 and self._runs[1][0] <= number:
            self._runs.popleft()
        if not self._runs or self._runs[0][0] > number:
            return None
        _, last, load, last_seq = self._runs[0]
        return Heartbeat(self._offset + min(number, last) * self._period, load, last_seq)
