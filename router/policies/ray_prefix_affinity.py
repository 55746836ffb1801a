"""Ray Serve LLM's PrefixCacheAffinityRouter."""

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

from router.load.views import ReplicaView
from router.policies.base import PolicyChoice, RequestShape, lowest
from router.policies.baselines import PowerOfTwoPolicy
from router.policies.sent_prefixes import SentPrefixPolicy


class RayPrefixAffinityPolicy(SentPrefixPolicy):
    """Source: `PrefixCacheAffinityRouter` of ray.serve.llm (Ray 2.60), a prefix tree of what was sent where.

        max queue - min queue > imbalanced_threshold      -> power of two choices
        matched / prompt tokens < match_rate_threshold    -> the replica with the smallest part of the tree
        else                                              -> the one with the longest match

    Queue: requests in flight. Among several the shorter queue wins. Defaults are the code's: 0.1 and no imbalance ever
    (infinity there, 1e9 here); Ray's documentation shows 10. So by default nothing looks at load while prompts match,
    and prompts without a match go by size of the tree. That misses meet a saturated replica (C1) and that one shared
    prompt draws all traffic to one replica (23) is what it does, not what we made of it.

    Approximated: the tree holds blocks instead of characters, so a match is rounded down to whole blocks and the last,
    partial block of a prompt counts as not matched; Ray's eviction (off by default) is our bound on memory, always on.
    """

    name = "ray_prefix_affinity"
    default_weights = MappingProxyType({"imbalanced_threshold": 1e9, "match_rate_threshold": 0.1})

    def __init__(self, weights: Mapping[str, float] | None = None):
        super().__init__(weights)
        self._power_of_two = PowerOfTwoPolicy()

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        queues = [replica.num_in_flight for replica in replicas]
        if max(queues) - min(queues) > self.weights["imbalanced_threshold"]:
            choice = self._power_of_two.choose(request, replicas, now, rng)
            return PolicyChoice(
                choice.replica_id, f"queues {min(queues)} to {max(queues)}: {choice.reason}", choice.scores
            )
        matched = self.sent_tokens(request, replicas)
        best = max(matched.values())
        if best / max(1, request.num_tokens) < self.weights["match_rate_threshold"]:
            scores = {replica_id: float(size) for replica_id, size in self.tree_tokens(request, replicas).items()}
            reason = f"only {best} of {request.num_tokens} tokens sent before: smallest tree"
        else:
            scores = {replica_id: float(-tokens) for replica_id, tokens in matched.items()}
            reason = f"{best} of {request.num_tokens} tokens sent there before"
        return PolicyChoice(lowest(scores, replicas, 0.0, rng).replica_id, reason, scores)
