"""LMetric: one product instead of a weighted sum."""

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape, lowest


class LmetricPolicy(Policy):
    """Source: "Simple is Better: Multiplication May Be All You Need for LLM Request Scheduling" (OSDI 2026,
    arXiv 2603.15202). Lowest cost:

        cost = new prefill tokens * (batch + 1)

    New prefill tokens: those queued there and those of this prompt that are not cached. Batch: requests in flight, as
    in the paper and in llm-d's `lmetric-scorer`; count_waiting = 0 leaves out those that wait, so that only the decode
    batch counts. Nothing to tune: that is its point. Dynamo's variant takes active blocks in place of the batch.
    Approximated: the paper's detector of hot prefixes, which it says never fires on its traces, is left out.
    """

    name = "lmetric"
    uses_index = True
    default_weights = MappingProxyType({"count_waiting": 1.0})

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        costs = {replica.replica_id: self._cost(request, replica) for replica in replicas}
        chosen = lowest(costs, replicas, 0.0, rng)
        reason = (
            f"{costs[chosen.replica_id]:.0f}: {chosen.hit_tokens} of {request.num_tokens} tokens cached, "
            f"{chosen.queued_prefill_tokens} queued, {chosen.num_in_flight} in flight"
        )
        return PolicyChoice(chosen.replica_id, reason, costs)

    def score_parts(self, request: RequestShape, replicas: Sequence[ReplicaView]) -> Mapping[str, Mapping[str, float]]:
        """The two factors of the product."""
        return {
            r.replica_id: dict(zip(("new_tokens", "batch"), self._factors(request, r), strict=True)) for r in replicas
        }

    def _cost(self, request: RequestShape, replica: ReplicaView) -> float:
        new_tokens, batch = self._factors(request, replica)
        return new_tokens * batch

    def _factors(self, request: RequestShape, replica: ReplicaView) -> tuple[float, float]:
        new_tokens = replica.queued_prefill_tokens + max(0, request.num_tokens - replica.hit_tokens)
        batch = replica.num_running + self.weights["count_waiting"] * replica.num_waiting
        return new_tokens, batch + 1.0
