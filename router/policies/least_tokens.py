"""Baseline: least work queued, blind to prefixes."""

from collections.abc import Sequence
from random import Random

from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape, lowest


class LeastTokensPolicy(Policy):
    """Fewest prompt tokens queued; among equals the fewest in flight, then at random."""

    name = "least_tokens"

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        scores = {replica.replica_id: float(replica.queued_prefill_tokens) for replica in replicas}
        chosen = lowest(scores, replicas, 0.0, rng)
        return PolicyChoice(chosen.replica_id, f"{chosen.queued_prefill_tokens} prompt tokens queued", scores)
