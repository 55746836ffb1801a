"""When the requests of a trace are sent."""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Protocol

from cluster.lab.trace import Trace

Arrival = tuple[float, int]
"""Moment in seconds and number of the request in the trace."""


class ArrivalPlan(Protocol):
    def first(self) -> Sequence[Arrival]: ...

    def after(self, number: int, now: float) -> Arrival | None:
        """What is sent because request `number` ended at `now`."""


class OpenLoop:
    """Requests come at fixed moments, however slow the answers are."""

    def __init__(self, times: Sequence[float]):
        self._times = times

    @classmethod
    def at_rate(cls, trace: Trace, rate: float, seed: int) -> "OpenLoop":
        """A mean of `rate` requests per second: the trace's own times stretched where it has any, else Poisson.

        Raises ValueError for a rate that is not above 0.
        """
        if not rate > 0.0:
            raise ValueError(f"rate must be above 0, got {rate}")
        if trace.recorded_seconds > 0.0:
            times = [request.at_seconds or 0.0 for request in trace.requests]
            stretch = (len(times) - 1) / rate / trace.recorded_seconds
            return cls([(moment - times[0]) * stretch for moment in times])
        rng = Random(f"arrivals {seed}")
        gaps = [rng.expovariate(rate) for _ in trace.requests]
        return cls(list(accumulate(gaps)))

    def first(self) -> Sequence[Arrival]:
        return [(moment, number) for number, moment in enumerate(self._times)]

    def after(self, number: int, now: float) -> Arrival | None:
        return None


class ClosedLoop:
    """So many users at once: each holds one session after the other, and thinks between two turns.

    A request without session is one by itself. Raises ValueError for concurrency below 1 or a negative think time.
    """

    def __init__(self, trace: Trace, concurrency: int, think_seconds: float = 0.0, seed: int = 0):
        if concurrency < 1 or not think_seconds >= 0.0:
            raise ValueError(f"concurrency must be at least 1 and think_seconds at least 0, got {concurrency} and "
                             f"{think_seconds}")  # fmt: skip
        sessions: dict[str, deque[int]] = {}
        for number, request in enumerate(trace.requests):
            sessions.setdefault(request.session or f"#{number}", deque()).append(number)
        self._waiting = deque(sessions.values())
        self._of: dict[int, deque[int]] = {}
        self._concurrency = concurrency
        self._think_seconds, self._rng = think_seconds, Random(f"thinking {seed}")

    def first(self) -> Sequence[Arrival]:
        started = min(self._concurrency, len(self._waiting))
        return [(0.0, self._next(self._waiting.popleft())) for _ in range(started)]

    def after(self, number: int, now: float) -> Arrival | None:
        session = self._of.pop(number)
        if session:
            pause = self._rng.expovariate(1.0 / self._think_seconds) if self._think_seconds else 0.0
            return now + pause, self._next(session)
        if self._waiting:
            return now, self._next(self._waiting.popleft())
        return None

    def _next(self, session: deque[int]) -> int:
        number = session.popleft()
        self._of[number] = session
        return number
