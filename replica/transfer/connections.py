"""The connections that a page server has: how many there may be, and what came of them."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

MAX_SLOTS = 64
"""Pages of memory that one connection may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageServerBounds:
    """max_connections: proven ones; each holds `num_slots` pages of memory. max_unproven: beyond it the oldest goes.
    handshake_seconds: for a new connection to prove itself. idle_seconds: one that asks for nothing is closed then.
    stalled_seconds: for the other end to take one page. bytes_per_second: over all pulls; None: no limit.
    """

    max_connections: int = 32
    max_unproven: int = 16
    handshake_seconds: float = 5.0
    idle_seconds: float = 60.0
    stalled_seconds: float = 10.0
    bytes_per_second: float | None = None
    num_slots: int = 4

    def __post_init__(self) -> None:
        for name in (
            "max_connections", "max_unproven", "handshake_seconds", "idle_seconds", "stalled_seconds",
            "bytes_per_second", "num_slots",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        if self.num_slots > MAX_SLOTS:
            raise ValueError(f"num_slots must be at most {MAX_SLOTS}, got {self.num_slots}")


@dataclass(slots=True)
class PageServerCounts:
    """num_connections: now, with those that have proven nothing yet. num_pulls, num_pages, num_bytes: since the start.
    failures: connections and pulls that ended otherwise than with all their pages, by cause."""

    num_connections: int = 0
    num_pulls: int = 0
    num_pages: int = 0
    num_bytes: int = 0
    failures: Counter[str] = field(default_factory=Counter)


class Connection(Protocol):
    idle_since: float | None
    """On `time.monotonic`; None while it serves."""

    def shut(self) -> None:
        """From any thread: it will end soon."""
        ...


class Connections:
    """Each is added, admitted once it has proven itself, and ended. From any thread."""

    def __init__(self, bounds: PageServerBounds):
        self._bounds = bounds
        self._lock = threading.Lock()
        self._unproven: dict[Connection, None] = {}  # the oldest first
        self._proven: dict[Connection, None] = {}
        self._counts = PageServerCounts()

    def counts(self) -> PageServerCounts:
        """A copy."""
        with self._lock:
            now = self._counts
            num_connections = len(self._unproven) + len(self._proven)
            return PageServerCounts(num_connections, now.num_pulls, now.num_pages, now.num_bytes, Counter(now.failures))

    @property
    def num_at_work(self) -> int:
        with self._lock:
            return sum(connection.idle_since is None for connection in self._proven)

    def add(self, connection: Connection) -> None:
        """One that only idles before it has proven itself keeps nobody out: the oldest such one goes."""
        with self._lock:
            self._unproven[connection] = None
            if len(self._unproven) > self._bounds.max_unproven:
                oldest = next(iter(self._unproven))
                del self._unproven[oldest]
                oldest.shut()

    def admit(self, connection: Connection) -> bool:
        """The one that is idle for longest makes room; where all are at work there is none."""
        with self._lock:
            self._unproven.pop(connection, None)
            if len(self._proven) >= self._bounds.max_connections:
                idle = [(other.idle_since, other) for other in self._proven if other.idle_since is not None]
                if not idle:
                    return False
                _, longest = min(idle, key=lambda pair: pair[0])
                del self._proven[longest]
                longest.shut()
            self._proven[connection] = None
            return True

    def end(self, connection: Connection, failure: str = "") -> None:
        with self._lock:
            self._unproven.pop(connection, None)
            self._proven.pop(connection, None)
            if failure:
                self._counts.failures[failure] += 1

    def count_pull(self, num_pages: int, num_bytes: int, failure: str = "") -> None:
        with self._lock:
            self._counts.num_pulls += 1
            self._counts.num_pages += num_pages
            self._counts.num_bytes += num_bytes
            if failure:
                self._counts.failures[failure] += 1
