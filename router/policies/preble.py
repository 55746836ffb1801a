"""Preble's E2: exploit a long cached prefix, else explore by cost."""

from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

from router.load.views import ReplicaView
from router.policies.base import PolicyChoice, RequestShape, lowest, prefill_rates
from router.policies.sent_prefixes import SentPrefixPolicy

MAX_REQUESTS = 100_000
DEFAULT_PREFILL_RATE = 1000.0
DEFAULT_DECODE_STEP_SECONDS = 0.03


class RequestWindow:
    """Sums seconds of work per replica over a sliding window. Bounded: above MAX_REQUESTS the oldest leave early."""

    def __init__(self) -> None:
        self._sent: deque[tuple[float, str, float]] = deque()
        self._seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        """Requests in the window."""
        return len(self._sent)

    def add(self, replica_id: str, seconds: float, now: float) -> None:
        self._sent.append((now, replica_id, seconds))
        self._seconds[replica_id] = self._seconds.get(replica_id, 0.0) + seconds
        self._counts[replica_id] = self._counts.get(replica_id, 0) + 1
        if len(self._sent) > MAX_REQUESTS:
            self._drop_oldest()

    def expire(self, before: float) -> None:
        """Drops what was sent before this moment."""
        while self._sent and self._sent[0][0] < before:
            self._drop_oldest()

    def seconds(self, replica_id: str) -> float:
        return self._seconds.get(replica_id, 0.0)

    def forget(self, replica_id: str) -> None:
        if self._counts.pop(replica_id, 0):
            self._sent = deque(entry for entry in self._sent if entry[1] != replica_id)
            del self._seconds[replica_id]

    def _drop_oldest(self) -> None:
        _, replica_id, seconds = self._sent.popleft()
        self._counts[replica_id] -= 1
        self._seconds[replica_id] -= seconds
        if not self._counts[replica_id]:  # also ends what rounding left over
            del self._counts[replica_id], self._seconds[replica_id]


class PreblePolicy(SentPrefixPolicy):
    """Source: "Preble: Efficient Distributed Prompt Scheduling for LLM Serving" (ICLR 2025, arXiv 2407.00023) and
    WukLab/preble's global scheduler.

    Exploit, where more than `exploit_share` (one half) of the prompt is cached somewhere: the replica with the longest
    match. Explore, otherwise: the replica with the lowest cost, in seconds:

        cost = load + eviction + prefill
        load     = sum over what it was sent in the last `window_seconds` (180): prefill of the uncached tokens + decode
        eviction = prefill of the cached tokens it would have to drop and that were sent within the window
        prefill  = prefill of this prompt's uncached tokens

    Rebalancing: where the load of the replica with the match exceeds `imbalance` (1.5) times the lightest one's, and
    at least `min_requests` (50) are in the window, the request goes to the lightest. That one computes the prefix and
    holds it too from then on: so hot prefixes are copied to more replicas, and a hot replica loses only what it gains
    least from, not everybody's affinity (C2).

    Approximated: matches come from the index (the original is told of evictions, which comes to the same); decode takes
    min(max_new_tokens, `output_tokens`) steps (45, the original's first guess; it learns the length later); prefill is
    linear in tokens, by each replica's measured rate, where the original uses profiled curves; which pages an engine
    would drop is reckoned from what was sent there. The original moves whole subtrees at once, here each request of a
    hot prefix is weighed by itself.
    """

    name = "preble"
    uses_index = True
    default_weights = MappingProxyType(
        {
            "exploit_share": 0.5,
            "window_seconds": 180.0,
            "imbalance": 1.5,
            "min_requests": 50.0,
            "output_tokens": 45.0,
        }
    )

    def __init__(self, weights: Mapping[str, float] | None = None):
        super().__init__(weights)
        self._window = RequestWindow()

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        self._window.expire(now - self.weights["window_seconds"])
        rates = prefill_rates(replicas, DEFAULT_PREFILL_RATE)
        best = max(replica.hit_tokens for replica in replicas)
        exploit = best / max(1, request.num_tokens) > self.weights["exploit_share"]
        among = [replica for replica in replicas if replica.hit_tokens == best] if exploit else replicas
        costs = {r.replica_id: self._cost(request, r, rates[r.replica_id], now) for r in among}
        holder = lowest(costs, among, 0.0, rng)
        if not exploit:
            return PolicyChoice(holder.replica_id, f"explore: {costs[holder.replica_id]:.3f} s, {best} cached", costs)
        loads = {replica.replica_id: self._window.seconds(replica.replica_id) for replica in replicas}
        lightest = lowest(loads, replicas, 0.0, rng)
        here, there = loads[holder.replica_id], loads[lightest.replica_id]
        if len(self._window) >= self.weights["min_requests"] and here > self.weights["imbalance"] * there:
            reason = f"rebalance: {best} cached where the load is {here:.1f} s, the lightest has {there:.1f} s"
            return PolicyChoice(lightest.replica_id, reason, loads)
        reason = f"exploit: {best} of {request.num_tokens} tokens cached"
        return PolicyChoice(holder.replica_id, reason, {r.replica_id: float(-r.hit_tokens) for r in replicas})

    def on_sent(self, request: RequestShape, replica_id: str, replicas: Sequence[ReplicaView], now: float) -> None:
        super().on_sent(request, replica_id, replicas, now)
        replica = next(r for r in replicas if r.replica_id == replica_id)
        rate = prefill_rates(replicas, DEFAULT_PREFILL_RATE)[replica_id]
        steps = min(request.max_new_tokens, self.weights["output_tokens"])
        decode = steps * (replica.decode_step_seconds or DEFAULT_DECODE_STEP_SECONDS)
        self._window.expire(now - self.weights["window_seconds"])
        self._window.add(replica_id, max(0, request.num_tokens - replica.hit_tokens) / rate + decode, now)
        if replica.num_blocks:
            self.sent.trim(replica_id, replica.num_blocks)

    def forget(self, replica_id: str) -> None:
        super().forget(replica_id)
        self._window.forget(replica_id)

    def _cost(self, request: RequestShape, replica: ReplicaView, rate: float, now: float) -> float:
        load = self._window.seconds(replica.replica_id)
        missing = max(0, request.num_tokens - replica.hit_tokens)
        return load + self._eviction(request, replica, missing, rate, now) + missing / rate

    def _eviction(self, request: RequestShape, replica: ReplicaView, missing: int, rate: float, now: float) -> float:
        held = self.sent.num_blocks(replica.replica_id)
        surplus = held + missing // request.block_size - replica.num_blocks
        if not replica.num_blocks or surplus <= 0:
            return 0.0
        since = now - self.weights["window_seconds"]
        return self.sent.num_live_victims(replica.replica_id, surplus, since) * request.block_size / rate
