"""Baseline: the longest cached prefix, whatever it costs. Piles a shared prompt up on one replica (23)."""

from collections.abc import Sequence
from random import Random

from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape, lowest


class LongestPrefixPolicy(Policy):
    name = "longest_prefix"
    uses_index = True

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        scores = {replica.replica_id: -float(replica.hit_tokens) for replica in replicas}
        chosen = lowest(scores, replicas, 0.0, rng)
        return PolicyChoice(chosen.replica_id, f"{chosen.hit_tokens} of {request.num_tokens} tokens cached", scores)
