"""llm-d's weighted sum of scorers, with pages of a peer where that holds more."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType

from router.load.views import ReplicaView
from router.policies.base import PolicyChoice, RequestShape
from router.policies.llmd_weighted import LlmdWeightedPolicy


class LlmdP2pPolicy(LlmdWeightedPolicy):
    """Source: `p2p-source-producer` of llm-d/llm-d-router (since July 2026). The replica is chosen as without it, and
    load and transfers count for nothing in whether it pulls: it does where the source holds at least
    `min_cached_token_delta` tokens more (minCachedTokenDelta, by default 1; its guide has 2,048 on an H200). The source
    is drawn among those within one block of the longest prefix, with weight 1 / (1 + waiting requests).
    """

    name = "llmd_p2p"
    default_weights = MappingProxyType({**LlmdWeightedPolicy.default_weights, "min_cached_token_delta": 1.0})

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        choice = super().choose(request, replicas, now, rng)
        chosen = next(replica for replica in replicas if replica.replica_id == choice.replica_id)
        if not chosen.pull_tokens:  # nobody gives pages away, or nobody holds more
            return choice
        most = max(replica.given_tokens for replica in replicas)
        near = [replica for replica in replicas if replica.given_tokens >= most - request.block_size]
        (source,) = rng.choices(near, [1.0 / (1.0 + replica.num_waiting) for replica in near])
        num_tokens = source.given_tokens - chosen.hit_tokens
        if num_tokens < max(1.0, self.weights["min_cached_token_delta"]):
            return choice
        reason = f"{choice.reason}, {num_tokens} from {source.replica_id}"
        return replace(choice, reason=reason, pulls=True, pull_from=source.replica_id, pull_tokens=num_tokens)
