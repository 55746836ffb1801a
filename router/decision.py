"""What the router decided for one request, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from cache.block_hasher import BlockKey
from router.ladder import Rung


class Outcome(StrEnum):
    """WARM: no replica holds more of the prompt than the chosen one. COLD: no replica holds any of it.

    LOAD_DIVERTED: another replica holds more of it. FALLBACK: a lower rung of the ladder chose.
    UNSCORED: the prompt has no block that could be looked up (shorter than a block, or not hashable): C29.
    """

    WARM = "warm"
    COLD = "cold"
    LOAD_DIVERTED = "load_diverted"
    FALLBACK = "fallback"
    UNSCORED = "unscored"


class ReplicaScore(NamedTuple):
    """One candidate as the policy saw it. score: lower wins; None where the policy did not compare it.

    parts: what the score is made of, by the names of the policy's formula; None but in explanations.
    """

    replica_id: str
    score: float | None
    hit_blocks: int
    num_running: int
    num_waiting: int
    queued_prefill_tokens: int
    parts: Mapping[str, float] | None = None

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {name: value for name, value in self._asdict().items() if name != "parts" or value is not None}


@dataclass(frozen=True, slots=True)
class Decision:
    """predicted_hit_tokens: on the chosen replica. reachable_hit_tokens: on the one that holds most.

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
        }
