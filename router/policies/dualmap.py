"""DualMap: two candidates per prefix, the warmer one while it is in time."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from random import Random
from types import MappingProxyType

from cache.block_hasher import BlockKey
from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape, lowest, prefill_rates

DEFAULT_PREFILL_RATE = 1000.0
MAX_LEVELS = 8


class DualmapPolicy(Policy):
    """Source: "DualMap: Enabling Both Cache Affinity and Load Balancing for Distributed LLM Serving" (ICLR 2026,
    arXiv 2602.06502), with the adaptive prefix of its ports to Dynamo and SMG.

    Two independent hashes of the prompt's head name two replicas. Of these

        the one with more of the prompt cached, while (queued + uncached tokens) / prefill rate <= ttft_target_seconds
        else the one with the lower of these times; likewise where both have as much cached

    The head: the first `hash_blocks` (4) blocks, and twice as many while that head is hot, that is, begins more than
    2 / replicas of the last `window_requests` (1000) prompts: two replicas could not carry it. Seven doublings at most.
    The target is the user's; 5 s here. Rendezvous hashing takes the place of the paper's dual hash ring: a replica that
    comes or goes moves only the prompts it is a candidate for.

    Approximated: the paper also moves requests that already wait from an overloaded instance to their other candidate;
    a router that has sent a request cannot, so hot spots are relieved by the next requests only.
    """

    name = "dualmap"
    uses_index = True
    default_weights = MappingProxyType({"hash_blocks": 4.0, "ttft_target_seconds": 5.0, "window_requests": 1000.0})

    def __init__(self, weights: Mapping[str, float] | None = None):
        super().__init__(weights)
        self._window: deque[tuple[BlockKey, ...]] = deque()
        self._arrivals: Counter[BlockKey] = Counter()

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        rates = prefill_rates(replicas, DEFAULT_PREFILL_RATE)
        times = {r.replica_id: _first_token(request, r, rates[r.replica_id]) for r in replicas}
        heads = self._heads(request)
        if not heads or len(replicas) == 1:
            chosen = lowest(times, replicas, 0.0, rng)
            return PolicyChoice(chosen.replica_id, f"nothing to hash: {times[chosen.replica_id]:.3f} s", times)
        pair = _candidates(self._cool(heads, len(replicas)), replicas)
        times = {replica.replica_id: times[replica.replica_id] for replica in pair}
        warm, cold = sorted(pair, key=lambda replica: -replica.hit_tokens)
        target = self.weights["ttft_target_seconds"]
        if warm.hit_tokens > cold.hit_tokens and times[warm.replica_id] <= target:
            reason = f"the warmer of two: {warm.hit_tokens} cached, {times[warm.replica_id]:.3f} s"
            return PolicyChoice(warm.replica_id, reason, times)
        chosen = lowest(times, pair, 0.0, rng)
        why = "as warm as the other" if warm.hit_tokens == cold.hit_tokens else f"the warmer is above {target} s"
        return PolicyChoice(chosen.replica_id, f"the sooner of two: {times[chosen.replica_id]:.3f} s, {why}", times)

    def on_sent(self, request: RequestShape, replica_id: str, replicas: Sequence[ReplicaView], now: float) -> None:
        heads = self._heads(request)
        if not heads:
            return
        self._window.append(heads)
        self._arrivals.update(heads)
        while len(self._window) > max(1.0, self.weights["window_requests"]):
            for head in self._window.popleft():
                self._arrivals[head] -= 1
                if not self._arrivals[head]:
                    del self._arrivals[head]

    def _heads(self, request: RequestShape) -> tuple[BlockKey, ...]:
        """Keys of the prompt's heads, each twice as long as the one before."""
        first = max(1, int(self.weights["hash_blocks"]))
        depths = [first << level for level in range(MAX_LEVELS)]
        return tuple(request.block_keys[depth - 1] for depth in depths if depth <= len(request.block_keys))

    def _cool(self, heads: Sequence[BlockKey], num_replicas: int) -> BlockKey:
        """The shortest head that is not hot, this request counted, else the longest."""
        bound = 2.0 / num_replicas * (len(self._window) + 1)
        return next((head for head in heads if self._arrivals[head] + 1 <= bound), heads[-1])


def _first_token(request: RequestShape, replica: ReplicaView, rate: float) -> float:
    """Expected seconds."""
    return (replica.queued_prefill_tokens + max(0, request.num_tokens - replica.hit_tokens)) / rate


def _candidates(head: BlockKey, replicas: Sequence[ReplicaView]) -> tuple[ReplicaView, ReplicaView]:
    """Two different replicas: the highest of two independent hashes of (head, replica)."""

    def draw(among: Sequence[ReplicaView], person: bytes) -> ReplicaView:
        return max(among, key=lambda r: blake2b(r.replica_id.encode(), key=head, person=person).digest())

    first = draw(replicas, b"first")
    return first, draw([replica for replica in replicas if replica is not first], b"second")
