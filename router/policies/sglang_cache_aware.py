"""cache_aware of SGLang's router and its family (SMG, vllm-router)."""

from collections.abc import Sequence
from random import Random
from types import MappingProxyType

from router.load.views import ReplicaView
from router.policies.base import PolicyChoice, RequestShape, lowest
from router.policies.sent_prefixes import SentPrefixPolicy


class SglangCacheAwarePolicy(SentPrefixPolicy):
    """Source: `cache_aware` of sgl-project/sglang's model gateway, a prefix tree of what was sent where.

        max - min > balance_abs_threshold and max > balance_rel_threshold * min   -> shortest queue
        matched / prompt tokens > cache_threshold                                 -> longest match
        else                                                                      -> least load, then the smallest tree

    Load: requests in flight. Defaults are those of the Rust code: 0.5, 32 and 1.1; what sglang-router starts it with
    since 0.2 is `sglang_cache_aware_0_2`. Older versions send what does not match to the smallest tree whatever its
    load (C1). The imbalance switches affinity off for all requests at once (C2, C3): that is the source's way, kept as
    it is.

    events = 1 is SMG's event mode: no thresholds, the best of (cached tokens, -load, -tree size), with what replicas
    published in place of the tree.

    Approximated: the tree holds blocks instead of characters (a match is rounded down to whole blocks), and its bound
    is over all replicas. Among equals the less loaded wins, then chance; the source takes any.
    """

    name = "sglang_cache_aware"
    default_weights = MappingProxyType(
        {"cache_threshold": 0.5, "balance_abs_threshold": 32.0, "balance_rel_threshold": 1.1, "events": 0.0}
    )

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        if self.weights["events"]:
            held = {replica.replica_id: float(-replica.hit_tokens) for replica in replicas}
            return self._least_loaded(request, replicas, held, "longest published match", rng)
        loads = [replica.num_in_flight for replica in replicas]
        if max(loads) - min(loads) > self.weights["balance_abs_threshold"] and max(loads) > self.weights[
            "balance_rel_threshold"
        ] * min(loads):
            queues = {replica.replica_id: float(replica.num_in_flight) for replica in replicas}
            reason = f"loads {min(loads)} to {max(loads)}: shortest queue"
            return PolicyChoice(lowest(queues, replicas, 0.0, rng).replica_id, reason, queues)
        matched = self.sent_tokens(request, replicas)
        best = max(matched.values())
        if best / max(1, request.num_tokens) > self.weights["cache_threshold"]:
            scores = {replica_id: float(-tokens) for replica_id, tokens in matched.items()}
            reason = f"{best} of {request.num_tokens} tokens sent there before"
            return PolicyChoice(lowest(scores, replicas, 0.0, rng).replica_id, reason, scores)
        equal = dict.fromkeys(matched, 0.0)
        return self._least_loaded(request, replicas, equal, f"only {best} of {request.num_tokens} sent before", rng)

    def _least_loaded(
        self,
        request: RequestShape,
        replicas: Sequence[ReplicaView],
        first: dict[str, float],
        reason: str,
        rng: Random,
    ) -> PolicyChoice:
        """The lowest of (first, load, size of the tree), then at random."""
        sizes = self.tree_tokens(request, replicas)
        ranks = {r.replica_id: (first[r.replica_id], r.num_in_flight, sizes[r.replica_id]) for r in replicas}
        best = min(ranks.values())
        chosen = rng.choice([replica_id for replica_id, rank in ranks.items() if rank == best])
        reason = f"{reason}: load {best[1]}, tree of {best[2]} tokens"
        return PolicyChoice(chosen, reason, {replica_id: float(rank[1]) for replica_id, rank in ranks.items()})


class SglangCacheAware02Policy(SglangCacheAwarePolicy):
    """Source: `sglang_router/router_args.py` of sglang-router 0.2.0 to 0.3.2 (the last release read), which starts the
    router with 0.3, 64 and 1.5. Up to 0.1.9 that file had 0.5, 32 and 1.0001, and the Rust code's own were 0.5, 32 and
    1.1, which are `sglang_cache_aware`'s.

    Less has to match before a prompt follows its prefix, and loads may lie further apart before affinity gives way.
    """

    name = "sglang_cache_aware_0_2"
    default_weights = MappingProxyType(
        {"cache_threshold": 0.3, "balance_abs_threshold": 64.0, "balance_rel_threshold": 1.5, "events": 0.0}
    )
