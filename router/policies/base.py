"""What every policy is given and gives back."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import ClassVar

from cache.block_hasher import BlockKey
from router.load.views import ReplicaView

LEAST_PREFILL_RATE = 1e-6
"""Tokens per second; below that nothing sensible was measured."""
MAX_WEIGHT = 1e9
"""Of every weight: far above all that make sense, and so far below infinity that no score gets there."""


def prefill_rates(replicas: Sequence[ReplicaView], default: float) -> dict[str, float]:
    """Tokens per second by replica id: its own measurement, else the median of the others', else `default`."""
    measured = [r.prefill_tokens_per_second for r in replicas if r.prefill_tokens_per_second > LEAST_PREFILL_RATE]
    middle = median(measured) if measured else default
    return {
        r.replica_id: r.prefill_tokens_per_second if r.prefill_tokens_per_second > LEAST_PREFILL_RATE else middle
        for r in replicas
    }


@dataclass(frozen=True, slots=True)
class RequestShape:
    """num_tokens: of the prompt. max_new_tokens: bound of the answer.

    block_keys: of the prompt's full blocks, each of `block_size` tokens. session_id: whose prompts belong together.
    """

    num_tokens: int
    max_new_tokens: int
    block_keys: Sequence[BlockKey] = ()
    block_size: int = 16
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """scores: replica id -> what the policy compared (lower wins), for those it looked at. reason: one line.

    pulls: whether the replica is to take pages from another one: from `pull_from`, `pull_tokens` of them, or where the
    policy names none from the one that its view names.
    """

    replica_id: str
    reason: str
    scores: Mapping[str, float] = field(default_factory=dict)
    pulls: bool = False
    pull_from: str = ""
    pull_tokens: int = 0


class Policy(ABC):
    """Synchronous, no I/O; clock and random generator come from the caller, so a policy can be simulated and replayed.

    `choose` decides and `on_sent` remembers: whoever only asks (an explanation) changes nothing. What a policy
    remembers is bounded (C22, 45).
    uses_index: whether it looks at hits. A policy that does not is left alone when the index is away.
    """

    name: ClassVar[str]
    uses_index: ClassVar[bool] = False
    default_weights: ClassVar[Mapping[str, float]] = {}

    def __init__(self, weights: Mapping[str, float] | None = None):
        """weights: replace the defaults of the same name. Raises ValueError for others, and for values not within 0 to
        MAX_WEIGHT."""
        weights = weights or {}
        unknown = sorted(set(weights) - set(self.default_weights))
        if unknown:
            known = ", ".join(self.default_weights) or "none"
            raise ValueError(f"policy {self.name} has no weight {unknown[0]!r}; it has: {known}")
        for name, value in weights.items():
            if not 0 <= value <= MAX_WEIGHT:  # an integer of any size is compared, not converted
                shown = str(value)[:40]
                raise ValueError(f"weight {name} of policy {self.name} must be 0 to {MAX_WEIGHT:g}, got {shown}")
        self.weights: Mapping[str, float] = {**self.default_weights, **{k: float(v) for k, v in weights.items()}}

    @abstractmethod
    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        """replicas: at least one, sorted by id; what is not in it does not exist (C18)."""

    def score_parts(self, request: RequestShape, replicas: Sequence[ReplicaView]) -> Mapping[str, Mapping[str, float]]:
        """What each replica's score is made of, in the words of the policy's formula: replica id -> part -> value. For
        explanations only; empty where a score has no parts."""
        return {}

    def on_sent(  # noqa: B027  not every policy remembers
        self, request: RequestShape, replica_id: str, replicas: Sequence[ReplicaView], now: float
    ) -> None:
        """The request goes to this one of these replicas, whoever chose it; again where a retry goes elsewhere."""

    def forget(self, replica_id: str) -> None:  # noqa: B027
        """The replica failed: what was computed there is lost."""


def lowest(scores: Mapping[str, float], replicas: Sequence[ReplicaView], margin: float, rng: Random) -> ReplicaView:
    """The replica with the lowest score; within `margin` of it the one with the least load, then at random (C6)."""
    bound = min(scores.values()) + margin
    near = [replica for replica in replicas if scores[replica.replica_id] <= bound]
    least = min((r.num_in_flight, r.recent_prefill_tokens) for r in near)
    return rng.choice([r for r in near if (r.num_in_flight, r.recent_prefill_tokens) == least])
