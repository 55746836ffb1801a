"""How busy each replica is, as a policy sees it."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from cache.wire.records import ReplicaLoad

HEARTBEAT_MAX_AGE_SECONDS = 2.0
"""An older heartbeat tells nothing about now: then only what this router itself has out there counts."""
RECENT_HALF_LIFE_SECONDS = 600.0
"""Longer than the pauses of people and agents, or paced traffic would look like none (C7)."""
MAX_CHANGES = 20_000
ANSWER_WEIGHT = 0.05
"""Of the newest answer in the mean of how long answers take."""


class ReplicaView(NamedTuple):
    """One candidate at the moment of a decision; a tuple, because each decision makes one for each replica.

    hit_tokens: leading prompt tokens that are (or are about to be) in its cache, at most what the engine can use.
    num_running, num_waiting, queued_prefill_tokens: as in `ReplicaLoad`, with what was sent since.
    recent_prefill_tokens: prompt tokens sent there of late and no longer queued, decaying. Survives between requests,
      so that paced traffic, which finds nothing in flight at any decision, is spread too (C7).
    prefill_tokens_per_second, decode_step_seconds: the replica's measurements, 0 where it has none.
    answer_seconds: how long answers took there of late from their first token to their end; 0 before the first ended.
    given_tokens: leading prompt tokens whose pages it could give to others: what is only expected is not among them.
    host_tokens, disk_tokens: of the hit, what lies in its colder tiers; restore_seconds: until that is in its pool.
    pull_tokens: tokens behind its hit that `pull_from` holds and could give it, and how long that would take.
      pull_lasts: seconds in which the giver computes as much as it has room for; later it may have evicted them.
      pull_evicts: share of them, 0 to 1, that would cost others their place here.
    pull_, host_, disk_bytes_per_second: its measurements, 0 where it has none. num_pulls: how many take pages from it.
    num_room_blocks: as in `ReplicaLoad`.
    num_blocks, num_active_blocks: KV blocks it has, and those that running requests hold; 0 where nobody told.
    """

    replica_id: str
    hit_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    queued_prefill_tokens: int = 0
    recent_prefill_tokens: float = 0.0
    prefill_tokens_per_second: float = 0.0
    decode_step_seconds: float = 0.0
    num_blocks: int = 0
    num_active_blocks: int = 0
    answer_seconds: float = 0.0
    pull_bytes_per_second: float = 0.0
    host_bytes_per_second: float = 0.0
    disk_bytes_per_second: float = 0.0
    num_pulls: int = 0
    num_room_blocks: int = 0
    given_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    restore_seconds: float = 0.0
    pull_from: str = ""
    pull_tokens: int = 0
    pull_seconds: float = 0.0
    pull_lasts: float = inf
    pull_evicts: float = 0.0

    @property
    def num_in_flight(self) -> int:
        return self.num_running + self.num_waiting

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that running requests hold, 0 to 1."""
        return self.num_active_blocks / self.num_blocks if self.num_blocks else 0.0


@dataclass(frozen=True, slots=True)
class LoadChange:
    """What one step of one request changes on its replica, and when the replica's own numbers show it."""

    shown_at: float
    waiting: int
    running: int
    prefill_tokens: int


class LoadTracker:
    """The load of one replica: its last heartbeat plus this router's changes that the heartbeat cannot show yet.

    So a burst inside one heartbeat is seen (C6, C9), and nothing is counted twice for longer than a request's way
    into the engine. Where there is no recent heartbeat the router's own requests are the load.
    """

    def __init__(self) -> None:
        self._heartbeat = ReplicaLoad()
        self._measured_at = float("-inf")
        self._since: list[LoadChange] = []
        self._own = [0, 0, 0]  # waiting, running, prefill tokens of all open requests of this router
        self._others = (0, 0)  # waiting, prefill tokens that other routers sent since the heartbeat
        self._recent = 0.0
        self._recent_at = 0.0
        self._answer_seconds = 0.0

    def on_heartbeat(self, load: ReplicaLoad, measured_at: float) -> None:
        if measured_at < self._measured_at:
            return
        self._heartbeat, self._measured_at = load, measured_at
        self._since = [change for change in self._since if change.shown_at > measured_at]

    def on_change(self, change: LoadChange) -> None:
        self._own[0] += change.waiting
        self._own[1] += change.running
        self._own[2] += change.prefill_tokens
        self._since.append(change)
        if len(self._since) > MAX_CHANGES:  # no heartbeat for long: the heartbeat does not count anyway
            del self._since[: MAX_CHANGES // 2]

    def set_others(self, num_waiting: int, prefill_tokens: int) -> None:
        self._others = (num_waiting, prefill_tokens)

    def add_recent(self, prefill_tokens: int, now: float) -> None:
        self._recent = max(0.0, self.recent(now) + prefill_tokens)
        self._recent_at = now

    def add_answer(self, seconds: float) -> None:
        """An answer has ended so long after its first token."""
        old = self._answer_seconds
        self._answer_seconds = old + ANSWER_WEIGHT * (seconds - old) if old else seconds

    def recent(self, now: float) -> float:
        if not self._recent:
            return 0.0
        age = max(0.0, now - self._recent_at)
        return float(self._recent * 0.5 ** (age / RECENT_HALF_LIFE_SECONDS))

    @property
    def idle(self) -> bool:
        """Whether this router has nothing open there."""
        return not any(self._own)

    def has_queue(self, now: float) -> bool:
        """Whether the replica itself said of late that prompts wait to be computed there."""
        return now - self._measured_at <= HEARTBEAT_MAX_AGE_SECONDS and self._heartbeat.queued_prefill_tokens > 0

    @property
    def measured_at(self) -> float:
        return self._measured_at

    def view(
        self, replica_id: str, hit_tokens: int, now: float, given_tokens: int = 0, num_pulls: int = 0
    ) -> ReplicaView:
        """num_pulls: of this router, that its heartbeat may not show yet."""
        waiting, running, tokens = self._own
        base = self._heartbeat
        num_active_blocks = 0
        if now - self._measured_at <= HEARTBEAT_MAX_AGE_SECONDS:
            running, waiting = base.num_running, base.num_waiting + self._others[0]
            tokens = base.queued_prefill_tokens + self._others[1]
            for change in self._since:
                running += change.running
                waiting += change.waiting
                tokens += change.prefill_tokens
            running, waiting = max(0, running), max(0, waiting)
            # A request whose way into the engine takes long is in no heartbeat, and in flight all the same (C5).
            waiting = max(waiting, self._own[0] + self._own[1] - running)
            num_active_blocks = max(0, base.num_blocks - base.num_free_blocks)
        return ReplicaView(
            replica_id=replica_id,
            hit_tokens=hit_tokens,
            num_running=running,
            num_waiting=waiting,
            queued_prefill_tokens=max(0, tokens),
            recent_prefill_tokens=max(0.0, self.recent(now) - self._own[2]),
            prefill_tokens_per_second=base.prefill_tokens_per_second,
            pull_bytes_per_second=base.pull_bytes_per_second,
            host_bytes_per_second=base.host_bytes_per_second,
            disk_bytes_per_second=base.disk_bytes_per_second,
            num_pulls=max(base.num_pulls, num_pulls),
            num_room_blocks=base.num_room_blocks,
            given_tokens=given_tokens,
            decode_step_seconds=base.decode_step_seconds,
            num_blocks=base.num_blocks,
            num_active_blocks=num_active_blocks,
            answer_seconds=self._answer_seconds,
        )
