"""What the ingress asks of the router, what the router decided and why, and the last decisions for people who ask."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from cache.block_hasher import NO_EXTRA_KEYS, BlockKey, ExtraKeys
from router.ladder import Rung


class NoReplicas(RuntimeError):
    """Nothing runs, or everything that runs was excluded."""


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """request_id: unique in the cluster; reservations are keyed by it. session_id: whose prompts belong together."""

    request_id: str
    token_ids: Sequence[int]
    max_new_tokens: int
    extra_keys: ExtraKeys = NO_EXTRA_KEYS
    session_id: str | None = None


class Outcome(StrEnum):
    """WARM: no replica holds more of the prompt than the chosen one. COLD: no replica holds any of it.

    LOAD_DIVERTED: another replica holds more of it. FALLBACK: a lower rung of the ladder chose.
    UNSCORED: the prompt has no block that could be looked up (shorter than a block, or not hashable); told apart, or
    prompts that never match would look like plain misses (C29).
    """

    WARM = "warm"
    COLD = "cold"
    LOAD_DIVERTED = "load_diverted"
    FALLBACK = "fallback"
    UNSCORED = "unscored"


_WHERE_THERE_IS_ONE = frozenset(
    ("parts", "host_blocks", "disk_blocks", "restore_seconds", "pull_tokens", "pull_from", "pull_seconds")
)
"""Fields that are left out where a replica has no such thing."""


class ReplicaScore(NamedTuple):
    """One candidate as the policy saw it. score: lower wins; None where the policy did not compare it.

    parts: what the score is made of, by the names of the policy's formula; None but in explanations.
    host_blocks, disk_blocks: of the hit, those in its colder tiers; restore_seconds: until they are in its pool.
    pull_tokens, pull_from, pull_seconds: what it could take from another one behind its hit; whether the policy counts
    with that is in its parts.
    """

    replica_id: str
    score: float | None
    hit_blocks: int
    num_running: int
    num_waiting: int
    queued_prefill_tokens: int
    parts: Mapping[str, float] | None = None
    host_blocks: int = 0
    disk_blocks: int = 0
    restore_seconds: float = 0.0
    pull_tokens: int = 0
    pull_from: str = ""
    pull_seconds: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        given = self._asdict()
        return {name: value for name, value in given.items() if value or name not in _WHERE_THERE_IS_ONE}


@dataclass(frozen=True, slots=True)
class Decision:
    """predicted_hit_tokens: on the chosen replica. reachable_hit_tokens: on the one that holds most.

    pull_tokens: behind the predicted hit, which the chosen replica is to take from `pull_from` (at `pages_at`) instead
    of computing them; 0 where it is not. pull_seconds: what the router expects that to take.
    block_keys: of all full blocks of the prompt; they travel with the request, so that it is hashed once.
    phase_seconds: hash, lookup, score, total.
    """

    request_id: str
    replica_id: str
    policy: str
    outcome: Outcome
    rung: Rung
    reason: str
    num_tokens: int
    predicted_hit_tokens: int
    reachable_hit_tokens: int
    scores: tuple[ReplicaScore, ...]
    phase_seconds: Mapping[str, float]
    block_keys: tuple[BlockKey, ...] = field(repr=False)
    pull_from: str = ""
    pull_tokens: int = 0
    pull_seconds: float = 0.0
    pages_at: str = field(default="", repr=False)

    @property
    def prefill_tokens(self) -> int:
        """Of the prompt, that the replica is expected to compute."""
        return self.num_tokens - self.predicted_hit_tokens - self.pull_tokens

    def to_dict(self) -> dict[str, object]:
        """For JSON; without the block keys, which would tell where prompts lie (C36)."""
        return {
            "request_id": self.request_id,
            "replica_id": self.replica_id,
            "policy": self.policy,
            "outcome": self.outcome.value,
            "rung": self.rung.name.lower(),
            "reason": self.reason,
            "num_tokens": self.num_tokens,
            "predicted_hit_tokens": self.predicted_hit_tokens,
            "reachable_hit_tokens": self.reachable_hit_tokens,
            "scores": [score.to_dict() for score in self.scores],
            "phase_seconds": dict(self.phase_seconds),
            **({"pull": self._pull()} if self.pull_tokens else {}),
        }

    def _pull(self) -> dict[str, object]:
        return {"from": self.pull_from, "tokens": self.pull_tokens, "seconds": self.pull_seconds}


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
