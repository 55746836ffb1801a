"""Bytes per second over everything that one replica gives away."""

import threading
import time
from collections.abc import Callable

_BURST_SECONDS = 0.1
"""So much of an unused past may be used at once."""


class RateLimit:
    """A token bucket that hands out turns: first come, first served, whoever reads slowly keeps none."""

    def __init__(self, bytes_per_second: float | None, clock: Callable[[], float] = time.monotonic):
        """None: no limit."""
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._free_at = clock()
        self._lock = threading.Lock()

    def reserve(self, num_bytes: int) -> float:
        """Seconds to wait before these bytes may go; they count from now on."""
        if self._bytes_per_second is None:
            return 0.0
        with self._lock:
            now = self._clock()
            turn = max(self._free_at, now - _BURST_SECONDS)
            self._free_at = turn + num_bytes / self._bytes_per_second
            return max(turn - now, 0.0)
