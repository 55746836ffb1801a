"""The cost function of NVIDIA Dynamo's KV router."""

import math
from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape, lowest


class DynamoCostPolicy(Policy):
    """Source: `DefaultWorkerSelector` of ai-dynamo/dynamo (lib/kv-router). Lowest cost, in blocks:

        cost   = prefill_scale * max(active prefill + prompt - credit, 0) + active decode + prompt
                 + decode_request_weight * requests in flight
        credit = overlap_credit * decay * cached blocks
        decay  = 1 / (1 + credit_decay * (active prefill - lowest active prefill) / prompt)

    temperature 0 takes the lowest, ties at random; above, a softmax over -cost / ((highest - lowest) * temperature).
    Defaults are Dynamo's: overlap_credit 1, credit_decay 0, prefill_scale 1, decode_request_weight 0, temperature 0.

    Active prefill: queued prompt tokens that are neither computed nor cached. Active decode: blocks that running
    requests hold, from the heartbeat, plus those that what is queued will take. Approximated: Dynamo counts a prompt's
    blocks only where they are not already in use there, here they count in full. Only the device tier exists, so its
    credits for host (0.75) and disk (0.25) have nothing to apply to. What was just sent counts as cached for as long as
    the router predicts it (5 s in Dynamo).
    """

    name = "dynamo_cost"
    uses_index = True
    default_weights = MappingProxyType(
        {
            "overlap_credit": 1.0,
            "credit_decay": 0.0,
            "prefill_scale": 1.0,
            "decode_request_weight": 0.0,
            "temperature": 0.0,
        }
    )

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        least = min(replica.queued_prefill_tokens for replica in replicas)
        costs = {replica.replica_id: self._cost(request, replica, least) for replica in replicas}
        temperature = self.weights["temperature"]
        chosen = _sample(costs, replicas, temperature, rng) if temperature else lowest(costs, replicas, 0.0, rng)
        reason = (
            f"{costs[chosen.replica_id]:.1f} blocks: {chosen.hit_tokens} of {request.num_tokens} tokens cached, "
            f"{chosen.queued_prefill_tokens} queued, {chosen.num_active_blocks} blocks active"
        )
        return PolicyChoice(chosen.replica_id, reason, costs)

    def score_parts(self, request: RequestShape, replicas: Sequence[ReplicaView]) -> Mapping[str, Mapping[str, float]]:
        least = min(replica.queued_prefill_tokens for replica in replicas)
        names = ("prefill", "decode", "requests")
        return {r.replica_id: dict(zip(names, self._parts(request, r, least), strict=True)) for r in replicas}

    def _cost(self, request: RequestShape, replica: ReplicaView, least_queued: int) -> float:
        return sum(self._parts(request, replica, least_queued))

    def _parts(self, request: RequestShape, replica: ReplicaView, least_queued: int) -> tuple[float, float, float]:
        weights, size = self.weights, request.block_size
        prompt = math.ceil(request.num_tokens / size)
        queued = replica.queued_prefill_tokens / size
        excess = (replica.queued_prefill_tokens - least_queued) / size
        decay = 1.0 / (1.0 + weights["credit_decay"] * excess / max(1, prompt))
        credit = weights["overlap_credit"] * decay * replica.hit_tokens / size
        prefill = max(queued + prompt - credit, 0.0)
        decode = replica.num_active_blocks + queued + prompt
        return (
            weights["prefill_scale"] * prefill,
            decode,
            weights["decode_request_weight"] * replica.num_in_flight,
        )


def _sample(
    costs: Mapping[str, float], replicas: Sequence[ReplicaView], temperature: float, rng: Random
) -> ReplicaView:
    low, high = min(costs.values()), max(costs.values())
    scale = (high - low) * temperature
    shares = [math.exp((low - costs[replica.replica_id]) / scale) if scale else 1.0 for replica in replicas]
    return rng.choices(replicas, weights=shares)[0]
