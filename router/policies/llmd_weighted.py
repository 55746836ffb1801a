"""llm-d's weighted sum of scorers."""

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape, lowest, prefill_rates

PEAK_PREFILL_RATE = 15_928.0
"""Tokens per second that llm-d assumes where nothing was measured (Qwen 32B on two H100)."""


class LlmdWeightedPolicy(Policy):
    """Source: the scorers of llm-d/llm-d-router, each from 0 to 1, their weighted sum, the highest wins:

        prefix = length_weight * min(1, matched / max_model_len)^2 + (1 - length_weight) * matched / prompt tokens
        queue  = (longest queue - queue) / (longest - shortest), 1 where all are equal
        kv     = 1 - share of KV blocks in use
        tokens = 1 - min(1, prefill tokens in flight with this prompt's / token_capacity)

    Defaults: prefix 2, queue 1, kv 1, tokens 0 (llm-d's usual 2 : 1 : 1); length_weight 0, max_model_len 8192,
    token_capacity 4 Mi. affinity_threshold (0 is off; llm-d's own default is 0.80) first keeps only the replicas that
    hold at least this share of the prompt, unless the best of them has over max_wait_seconds (18) more prefill
    queued than the best of the others. llm-d advises a prefix weight of 0 with it.

    Scores are shown negated: here the lowest wins. Queue: waiting requests. Approximated: the wait is reckoned with
    each replica's measured prefill rate, where llm-d takes one number for all; only the device tier exists (host would
    count 0.8); its saturation gate refuses requests and chooses nothing, so it is not here.
    """

    name = "llmd_weighted"
    uses_index = True
    default_weights = MappingProxyType(
        {
            "prefix": 2.0,
            "queue": 1.0,
            "kv": 1.0,
            "tokens": 0.0,
            "length_weight": 0.0,
            "max_model_len": 8192.0,
            "token_capacity": 4194304.0,
            "affinity_threshold": 0.0,
            "max_wait_seconds": 18.0,
        }
    )

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        kept = self._with_affinity(request, replicas)
        shortest, longest = _queues(kept)
        scores = {r.replica_id: -self._score(request, r, shortest, longest) for r in kept}
        chosen = lowest(scores, kept, 0.0, rng)
        reason = (
            f"{-scores[chosen.replica_id]:.3f}: {chosen.hit_tokens} of {request.num_tokens} tokens cached, "
            f"{chosen.num_waiting} waiting, {chosen.kv_usage:.0%} of the KV blocks in use"
        )
        return PolicyChoice(chosen.replica_id, reason, scores)

    def score_parts(self, request: RequestShape, replicas: Sequence[ReplicaView]) -> Mapping[str, Mapping[str, float]]:
        kept = self._with_affinity(request, replicas)
        shortest, longest = _queues(kept)
        return {
            r.replica_id: {name: -value for name, value in self._parts(request, r, shortest, longest).items()}
            for r in kept
        }

    def _score(self, request: RequestShape, replica: ReplicaView, shortest: int, longest: int) -> float:
        return sum(self._parts(request, replica, shortest, longest).values())

    def _parts(self, request: RequestShape, replica: ReplicaView, shortest: int, longest: int) -> dict[str, float]:
        weights, matched = self.weights, replica.hit_tokens
        length = min(1.0, matched / max(1.0, weights["max_model_len"])) ** 2
        share = matched / max(1, request.num_tokens)
        prefix = weights["length_weight"] * length + (1.0 - weights["length_weight"]) * share
        queue = (longest - replica.num_waiting) / (longest - shortest) if longest > shortest else 1.0
        in_flight = replica.queued_prefill_tokens + max(0, request.num_tokens - matched)
        tokens = 1.0 - min(1.0, in_flight / max(1.0, weights["token_capacity"]))
        return {
            "prefix": weights["prefix"] * prefix,
            "queue": weights["queue"] * queue,
            "kv": weights["kv"] * (1.0 - replica.kv_usage),
            "tokens": weights["tokens"] * tokens,
        }

    def _with_affinity(self, request: RequestShape, replicas: Sequence[ReplicaView]) -> Sequence[ReplicaView]:
        threshold = self.weights["affinity_threshold"]
        num_tokens = max(1, request.num_tokens)
        sticky = [r for r in replicas if threshold and r.hit_tokens / num_tokens >= threshold]
        kept = {r.replica_id for r in sticky}
        others = [r for r in replicas if r.replica_id not in kept]
        if not sticky or not others:
            return replicas
        rates = prefill_rates(replicas, PEAK_PREFILL_RATE)
        waits = {r.replica_id: r.queued_prefill_tokens / rates[r.replica_id] for r in replicas}
        penalty = min(waits[r.replica_id] for r in sticky) - min(waits[r.replica_id] for r in others)
        return replicas if penalty > self.weights["max_wait_seconds"] > 0 else sticky


def _queues(replicas: Sequence[ReplicaView]) -> tuple[int, int]:
    """The shortest and the longest."""
    queues = [replica.num_waiting for replica in replicas]
    return min(queues), max(queues)
