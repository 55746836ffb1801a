"""Consistent hash of the prompt's head with bounded load."""

from collections.abc import Sequence
from random import Random
from types import MappingProxyType

from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape, lowest
from router.policies.hash_ring import ring_of


class PrefixHashBoundedPolicy(Policy):
    """The first replica on the hash ring behind hash(first 256 tokens) whose load is within the bound:

        requests in flight <= load_factor * (requests in flight of all + 1) / replicas

    After "Consistent Hashing with Bounded Loads" (Mirrokni, Thorup, Zadimoghaddam, 2016) with the defaults of
    `prefix_hash` in SGLang's model gateway (256 tokens, factor 1.25). That one gives a request above the bound to the
    least loaded replica; here it goes to the next on the ring, as in the paper, so that a hot prompt spills over to
    the same neighbours each time. Neither needs an index. A prompt without a full block goes to the least loaded.
    """

    name = "prefix_hash_bounded"
    default_weights = MappingProxyType({"prefix_tokens": 256.0, "load_factor": 1.25})

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        loads = {replica.replica_id: float(replica.num_in_flight) for replica in replicas}
        num_blocks = min(len(request.block_keys), int(self.weights["prefix_tokens"]) // request.block_size)
        if not num_blocks:
            return PolicyChoice(lowest(loads, replicas, 0.0, rng).replica_id, "no block: fewest in flight", loads)
        bound = self.weights["load_factor"] * (sum(loads.values()) + 1) / len(replicas)
        order = list(ring_of(tuple(loads)).walk(request.block_keys[num_blocks - 1]))
        for place, replica_id in enumerate(order):
            if loads[replica_id] <= bound:
                head = num_blocks * request.block_size
                reason = f"place {place} on the ring of the first {head} tokens, load {loads[replica_id]:.0f}"
                return PolicyChoice(replica_id, f"{reason} <= {bound:.2f}", loads)
        return PolicyChoice(order[0], "all above the bound: first on the ring", loads)  # with a factor below 1
