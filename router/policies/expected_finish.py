"""The default: where the request will be served soonest, counting what the choice costs the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from types import MappingProxyType

from router.policies.base import Policy, PolicyChoice, RequestShape, lowest
from router.replica_view import ReplicaView

DEFAULT_PREFILL_RATE = 1000.0
DEFAULT_DECODE_STEP_SECONDS = 0.03


@dataclass(frozen=True, slots=True)
class Speeds:
    """prefill_rates: tokens per second of each replica. decode_slope: seconds that one more request adds to a step."""

    prefill_rates: Mapping[str, float]
    decode_slope: float


class ExpectedFinishPolicy(Policy):
    """Lowest score in seconds:

        first token = (queued prefill + uncached tokens of this prompt) / prefill rate
        work        = uncached tokens / prefill rate: time that whoever comes next waits longer
        stall       = uncached tokens / prefill rate * requests running there
        decode      = 2 * new tokens * running * decode slope: slower steps for this request and for each running one
        recent      = tokens of late that are no longer queued / prefill rate

    `first token` counts once, the others times their weights. Every replica's hit is weighed against its load (C3,
    C10), nothing switches affinity off for all (C2), and without any hit only load decides (C1, C8). `work` keeps the
    siblings of a cold prefix together while its first request is still computing it (C12, 50); `decode` lets a shared
    prompt spread over the replicas as soon as requests run (23); `recent` does the same for traffic so paced that
    nothing is ever in flight, and for a replica that has just joined (C7, C13). While the weight of `recent` is below
    1 + `work`, one session alone never moves: what was computed for it of late is no more than what another replica
    would have to compute again, and that counts 1 + `work` times.
    """

    name = "expected_finish"
    uses_index = True
    default_weights = MappingProxyType(
        {
            "work": 1.0,
            "stall": 0.05,
            "decode": 1.0,
            "recent": 1.0,
            "new_tokens": 64.0,  # of an answer, at most: what a client allows is rarely used up
            "batch_base": 4.0,  # a decode step of one request costs as much as so many more requests add
            "margin": 0.02,  # scores closer than this share of the lowest are equal
        }
    )

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        speeds = self._speeds(replicas)
        scores = {replica.replica_id: self._score(request, replica, speeds) for replica in replicas}
        margin = min(scores.values()) * self.weights["margin"] + 1e-4
        chosen = lowest(scores, replicas, margin, rng)
        reason = (
            f"{scores[chosen.replica_id]:.3f} s: {chosen.hit_tokens} of {request.num_tokens} tokens cached, "
            f"{chosen.queued_prefill_tokens} queued, {chosen.num_running} running"
        )
        return PolicyChoice(chosen.replica_id, reason, scores)

    def _score(self, request: RequestShape, replica: ReplicaView, speeds: Speeds) -> float:
        weights, rate = self.weights, speeds.prefill_rates[replica.replica_id]
        prefill = max(0, request.num_tokens - replica.hit_tokens) / rate
        first_token = replica.queued_prefill_tokens / rate + prefill
        new_tokens = min(request.max_new_tokens, weights["new_tokens"])
        decode = 2.0 * new_tokens * replica.num_running * speeds.decode_slope
        return (
            first_token
            + weights["work"] * prefill
            + weights["stall"] * prefill * replica.num_running
            + weights["decode"] * decode
            + weights["recent"] * replica.recent_prefill_tokens / rate
        )

    def _speeds(self, replicas: Sequence[ReplicaView]) -> Speeds:
        """A replica that measured nothing gets the median, and none counts as more than four times off it: one odd
        measurement must not decide. The slope is shared: a step measured at another batch size misleads."""
        measured = [r.prefill_tokens_per_second for r in replicas if r.prefill_tokens_per_second > 0]
        middle = median(measured) if measured else DEFAULT_PREFILL_RATE
        rates = {
            r.replica_id: min(max(r.prefill_tokens_per_second or middle, middle / 4), middle * 4) for r in replicas
        }
        base = self.weights["batch_base"]
        busy = [
            r.decode_step_seconds / (r.num_running + base) for r in replicas if r.num_running and r.decode_step_seconds
        ]
        steps = [r.decode_step_seconds for r in replicas if r.decode_step_seconds] or [DEFAULT_DECODE_STEP_SECONDS]
        return Speeds(rates, median(busy) if busy else min(steps) / (1 + base))
