"""The default: where the request will be served soonest, counting what the choice costs the others."""

from collections.abc import Mapping, Sequence
from random import Random
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape, lowest, prefill_rates

DEFAULT_PREFILL_RATE = 1000.0
DEFAULT_DECODE_STEP_SECONDS = 0.03
PARTS = ("queue", "prefill", "delay", "decode", "memory", "recent", "restore", "evict", "pull")
"""Of a score, in seconds; `queue`, `prefill`, `memory`, `restore` and `pull` together are the first token."""


class Speeds(NamedTuple):
    """What was measured, with gaps filled.

    prefill_rates: tokens per second of each replica; usual_rate is the middle one. decode_step, decode_slope: seconds
    of a usual decode step, and what one more request adds to it. answer_tokens: of a usual answer. num_in_flight,
    queued_tokens: on a usual replica. num_delayed: whom uncached work delays there, weighted. idle_share: of the
    replicas, those that have nothing to do. decode_tokens: how far to look ahead.
    """

    prefill_rates: Mapping[str, float]
    usual_rate: float
    decode_step: float
    decode_slope: float
    answer_tokens: float
    num_in_flight: float
    queued_tokens: float
    num_delayed: float
    idle_share: float
    decode_tokens: float


class ExpectedFinishPolicy(Policy):
    """Lowest score in seconds:

        first token = (queued prefill + uncached tokens of this prompt) / prefill rate + memory + restore + pull
        delay       = uncached tokens / usual prefill rate * (work + stall * who runs + behind * who waits)
        decode      = weight * 2 * tokens * decoding * decode slope: slower steps for this request and for each other
        recent      = tokens of late that are no longer queued / prefill rate, at most so many times this prompt,
                      times the share of the replicas that are idle

    `first token` and `delay` are what this request waits, and what its uncached tokens make others wait: whoever comes
    next, those that run, and those that will stand behind it, about as many as wait now. So the more the fleet has to
    do, the more a hit is worth, because work done twice is then what everybody waits for. Who runs and waits is
    counted on a usual replica, so that among equally cold replicas only the first token and decoding decide; but on a
    replica with less than half of the usual requests and of the usual queue in proportion fewer are delayed, and on an
    idle one nobody. Both count: a replica that has few requests, one of them with a long prompt, is not free.

    `decode` counts who runs and who waits, for they will run beside this request; of those at most as many as run, for
    siblings that wait for a cold prefix are not a reason to leave it. It looks ahead over the answer, but no further
    than `decode_tokens`: a replica that decodes more than others gets less from the decisions that follow, and what
    long answers would cost beyond that must not tear talks from their pages. A prompt of which no replica holds
    anything has none: there it looks `decode_tokens_cold` ahead.

    restore: a hit that lies in the replica's memory or on its disk is copied into its pool first.

    pull: where another replica holds more of the prompt, its pages may be taken from there (`ReplicaView.pull_tokens`).
    They are then not computed, and nobody waits for them, but this request waits for the transfer. Of both ways each
    replica counts with the cheaper one, so that a hot prefix spreads when its owner's queue costs more than a copy.

    evict: a copy in a full cache costs another page its place, and somebody its computing later. There a pull counts as
    if all were computed: a full fleet shares out prompts as it does without pulls, and each prefix keeps its owner. On
    a replica that is chosen so the pages are taken all the same, for what is computed takes as much room.

    Every replica's hit is weighed against its load (C3, C10), nothing switches affinity off for all (C2), and without
    any hit only load decides (C1, C8). `work` keeps the siblings of a cold prefix together while its first request is
    still computing it (C12, 50); `decode` lets a shared prompt spread over the replicas as soon as requests run (23);
    `recent` does the same for traffic so paced that nothing is ever in flight, and for a replica that has just joined
    (C7, C13). Where all are busy the load tells enough, and the memory of past work would only tear sessions from
    their pages: then `recent` is 0. One session alone never moves: what was computed for it of late is no more than
    what another replica would have to compute again, and that counts 1 + `work` times.

    The wait for memory: blocks that are missing for those that wait and for this request, over the rate at which
    running requests give theirs back.

    Scores are equal where they differ by less than `margin` of the best one's first token: so exact are its
    measurements. The delay is no measure for that. It is the same on all that are equally cold, and grows with the
    fleet's load to many times the first token, until a share of it hides queues of seconds.
    """

    name = "expected_finish"
    uses_index = True
    default_weights = MappingProxyType(
        {
            "work": 1.0,
            "stall": 0.85,  # those who run wait for the steps that compute them, but some end before
            "behind": 3.0,
            "memory": 1.0,
            "decode": 0.3,
            "recent": 1.0,
            "evict": 1.0,
            "recent_cap": 4.0,  # prompts
            "new_tokens": 32.0,  # of an answer, before the first answers have ended
            "decode_tokens": 32.0,  # a difference in decoding lasts so long, later decisions even it out
            "decode_tokens_cold": 64.0,  # where nobody holds any of the prompt, no pages speak against it
            "batch_base": 4.0,  # a decode step of one request costs as much as so many more requests add
            "rate_trust": 0.75,  # how much of a rate's distance from the usual one is the replica; the rest is noise
            "margin": 0.05,  # scores closer than this share of the best one's first token are equal
        }
    )

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        speeds = self._speeds(request, replicas)
        parts = {replica.replica_id: self._parts(request, replica, speeds) for replica in replicas}
        scores = {replica_id: sum(found) for replica_id, found in parts.items()}
        queue, prefill, _, _, memory, _, restore, _, pull = parts[min(scores, key=scores.__getitem__)]
        margin = (queue + prefill + memory + restore + pull) * self.weights["margin"] + 1e-4
        chosen = lowest(scores, replicas, margin, rng)
        reason = (
            f"{scores[chosen.replica_id]:.3f} s: {chosen.hit_tokens} of {request.num_tokens} tokens cached, "
            f"{chosen.queued_prefill_tokens} queued, {chosen.num_running} running"
        )
        pulls = parts[chosen.replica_id][-1] > 0.0
        if pulls:
            reason += f", {chosen.pull_tokens} from {chosen.pull_from}"
        return PolicyChoice(chosen.replica_id, reason, scores, pulls)

    def score_parts(self, request: RequestShape, replicas: Sequence[ReplicaView]) -> Mapping[str, Mapping[str, float]]:
        speeds = self._speeds(request, replicas)
        return {
            replica.replica_id: dict(zip(PARTS, self._parts(request, replica, speeds), strict=True))
            for replica in replicas
        }

    def _parts(self, request: RequestShape, replica: ReplicaView, speeds: Speeds) -> tuple[float, ...]:
        """In the order of PARTS; their sum is the score."""
        weights, rate, running = self.weights, speeds.prefill_rates[replica.replica_id], replica.num_running
        new_tokens = request.num_tokens - replica.hit_tokens
        delayed = weights["work"] + _busy(replica, speeds) * speeds.num_delayed
        decoding = running + min(running, replica.num_waiting)
        memory = recent = 0.0
        if running and replica.num_blocks:
            memory = weights["memory"] * _memory_seconds(request, replica, speeds)
        if speeds.idle_share:
            of_late = min(replica.recent_prefill_tokens, weights["recent_cap"] * request.num_tokens) / rate
            recent = weights["recent"] * of_late * speeds.idle_share
        queue = replica.queued_prefill_tokens / rate
        decode = weights["decode"] * 2.0 * speeds.decode_tokens * decoding * speeds.decode_slope

        usual_delay, restore = delayed / speeds.usual_rate, replica.restore_seconds
        to_compute, evict, pull = float(max(0, new_tokens)), 0.0, 0.0
        if replica.pull_tokens:
            # By the time that this request's turn comes a full giver may have evicted some of it.
            come = min(to_compute, replica.pull_tokens * (1.0 - min(1.0, queue / replica.pull_lasts)))
            saved = come * (1.0 / rate + usual_delay) - replica.pull_seconds
            if saved > 0.0:
                to_compute, pull = to_compute - come, replica.pull_seconds
                evict = weights["evict"] * replica.pull_evicts * saved
        return queue, to_compute / rate, to_compute * usual_delay, decode, memory, recent, restore, evict, pull

    def _speeds(self, request: RequestShape, replicas: Sequence[ReplicaView]) -> Speeds:
        """A replica that measured nothing gets the median, others move towards it, and none counts as more than four
        times off it: rates are measured over few steps of different sizes, and one odd measurement must not decide.
        The slope is shared: a step measured at another batch size misleads."""
        rates = prefill_rates(replicas, DEFAULT_PREFILL_RATE)
        middle, trust = median(rates.values()), min(1.0, self.weights["rate_trust"])
        rates = {name: middle * min(max(rate / middle, 0.25), 4.0) ** trust for name, rate in rates.items()}
        base = self.weights["batch_base"]
        steps, slopes, answers = [], [], []
        num_running = num_waiting = num_idle = queued_tokens = 0
        for replica in replicas:
            queued_tokens += replica.queued_prefill_tokens
            num_running += replica.num_running
            num_waiting += replica.num_waiting
            num_idle += not replica.num_running and not replica.num_waiting
            if replica.decode_step_seconds:
                steps.append(replica.decode_step_seconds)
                if replica.num_running:
                    slopes.append(replica.decode_step_seconds / (replica.num_running + base))
            if replica.answer_seconds:
                answers.append(replica.answer_seconds)
        step = median(steps) if steps else DEFAULT_DECODE_STEP_SECONDS
        answer_tokens = max(1.0, sum(answers) / len(answers) / step) if answers else self.weights["new_tokens"]
        answer_tokens = min(request.max_new_tokens, answer_tokens)
        horizon = self.weights["decode_tokens" if any(r.hit_tokens for r in replicas) else "decode_tokens_cold"]
        return Speeds(
            prefill_rates=rates,
            usual_rate=middle,
            decode_step=step,
            decode_slope=median(slopes) if slopes else min(steps, default=step) / (1 + base),
            answer_tokens=answer_tokens,
            num_in_flight=(num_running + num_waiting) / len(replicas),
            queued_tokens=queued_tokens / len(replicas),
            num_delayed=(self.weights["stall"] * num_running + self.weights["behind"] * num_waiting) / len(replicas),
            idle_share=num_idle / len(replicas),
            decode_tokens=min(horizon, answer_tokens),
        )


def _busy(replica: ReplicaView, speeds: Speeds) -> float:
    """1 from half of what a usual replica has on, by requests or by queue, 0 where there is neither."""
    requests = replica.num_in_flight / speeds.num_in_flight if speeds.num_in_flight else 0.0
    queue = replica.queued_prefill_tokens / speeds.queued_tokens if speeds.queued_tokens else 0.0
    return min(1.0, 2.0 * max(requests, queue))


def _memory_seconds(request: RequestShape, replica: ReplicaView, speeds: Speeds) -> float:
    """How long until running requests have given back the blocks that are missing.

    Who waits is taken to need as much as who runs, who runs to be half through its answer, and a hit to lie in blocks
    that somebody holds.
    """
    held_by_one = replica.num_active_blocks / replica.num_running
    own = (request.num_tokens - replica.hit_tokens + speeds.answer_tokens) / request.block_size
    growth = replica.num_running * speeds.answer_tokens / 2.0 / request.block_size
    missing = replica.num_active_blocks + growth + replica.num_waiting * held_by_one + own - replica.num_blocks
    if missing <= 0.0 or not replica.num_active_blocks:
        return 0.0
    step = replica.decode_step_seconds or speeds.decode_step
    return missing / replica.num_active_blocks * speeds.answer_tokens * step
