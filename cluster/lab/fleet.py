"""A whole cluster in virtual time."""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from random import Random

from cache.block_hasher import BlockHasher
from cluster.lab.arrival_plan import ArrivalPlan
from cluster.lab.cost_model import CostModel
from cluster.lab.fleet_config import FleetConfig
from cluster.lab.simulated_loading import Links
from cluster.lab.simulated_replica import SimulatedReplica
from cluster.lab.simulated_router import SimulatedRouter
from cluster.lab.step_clock import StepClock
from cluster.lab.trace import Trace
from cluster.lab.word_tokenizer import VOCAB_SIZE
from replica.messages import GenerateRequest, PageAddress, Pull
from replica.request import Request
from replica.sampling_params import SamplingParams
from router.decision import RouteRequest
from router.policies.registry import make_policy


@dataclass(slots=True)
class RequestOutcome:
    """What became of one request. Moments are virtual seconds; at the client where not said otherwise.

    queued_at, admitted_at: at the replica. hit_tokens: prompt tokens it took from its cache.
    """

    number: int
    arrived_at: float
    num_prompt_tokens: int
    num_new_tokens: int
    replica: int = -1
    queued_at: float = 0.0
    admitted_at: float = 0.0
    first_token_at: float = 0.0
    finished_at: float = 0.0
    hit_tokens: int = 0

    @property
    def ttft_seconds(self) -> float:
        return self.first_token_at - self.arrived_at

    @property
    def total_seconds(self) -> float:
        return self.finished_at - self.arrived_at

    @property
    def queue_seconds(self) -> float:
        return self.admitted_at - self.queued_at


@dataclass(frozen=True, slots=True)
class FleetResult:
    """outcomes: in the trace's order. computed_tokens: prefilled tokens of each replica, those done again included.
    loaded_tokens: hits that came from the replicas' memory (host) and from other replicas (peer)."""

    outcomes: Sequence[RequestOutcome]
    computed_tokens: Sequence[int]
    num_steps: int
    num_preemptions: int
    num_resyncs: int
    makespan_seconds: float
    loaded_tokens: Mapping[str, int] = field(default_factory=dict)


class _Kind(IntEnum):
    """Of what happens at the same moment, this comes first."""

    FIRST_TOKEN = 0
    FINISHED = 1
    AT_REPLICA = 2
    WAKE = 3
    AT_INGRESS = 4


@dataclass(slots=True)
class _Sent:
    request: Request
    replica: int
    router: SimulatedRouter
    outcome: RequestOutcome
    answer: Sequence[int] = field(repr=False)


class Fleet:
    """Runs one trace under one policy. The same arguments give the same result, to the last bit."""

    def __init__(
        self,
        config: FleetConfig,
        cost_model: CostModel,
        hasher: BlockHasher,
        policy: str,
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
    ):
        """Raises ValueError for an unknown policy or weight, and for a hasher of another block size."""
        if hasher.block_size != config.block_size:
            raise ValueError(f"the hasher's blocks have {hasher.block_size} tokens, not {config.block_size}")
        self._config = config
        self._hasher = hasher
        slow = Random(f"slow replicas {seed}").sample(range(config.num_replicas), config.num_slow_replicas)
        self._replicas = [
            SimulatedReplica(
                number,
                config,
                hasher,
                StepClock(
                    cost_model,
                    Random(f"steps {seed} {number}"),
                    config.step_noise,
                    config.slowness if number in slow else 1.0,
                ),
                Random(f"losses {seed} {number}"),
                self,
                cost_model.kv_bytes_per_token * config.block_size,
            )
            for number in range(config.num_replicas)
        ]
        self._numbers = {replica.replica_id: number for number, replica in enumerate(self._replicas)}
        if config.pull or config.host_blocks:
            managers = {replica.replica_id: replica.scheduler.manager for replica in self._replicas}
            links = None
            if config.pull:
                links = Links(config.num_replicas, config.link_bytes_per_second, config.link_seconds)
            for replica in self._replicas:
                replica.connect(managers, self._numbers, links)
        self._make_router = lambda number, max_len: SimulatedRouter(
            self._replicas,
            hasher,
            make_policy(policy, weights),
            Random(f"router {seed} {number}"),
            config.index_delay_seconds,
            max_len,
        )
        self._routers: list[SimulatedRouter] = []
        self._heap: list[tuple[float, int, int, int]] = []  # moment, kind, order of pushing, number
        self._num_pushed = 0
        self._wakes_at: list[float | None] = [None] * config.num_replicas
        self._sent: dict[str, _Sent] = {}

    def run(self, trace: Trace, plan: ArrivalPlan, on_done: Callable[[], None] | None = None) -> FleetResult:
        """May be called once. on_done: called for each finished request.

        Raises ValueError for a request that no replica can hold, and PolicyFailed.
        """
        capacity = self._config.num_blocks * self._config.block_size
        if trace.longest_tokens > capacity:
            raise ValueError(f"the longest request has {trace.longest_tokens} tokens, a replica holds {capacity}")
        self._trace, self._plan, self._on_done = trace, plan, on_done
        self._max_new_tokens = max(request.num_new_tokens for request in trace.requests)
        max_len = trace.longest_tokens + self._max_new_tokens
        self._routers = [self._make_router(number, max_len) for number in range(self._config.num_routers)]
        self._outcomes: dict[int, RequestOutcome] = {}
        for moment, number in plan.first():
            self._push(moment, _Kind.AT_INGRESS, number)
        now = 0.0
        while self._heap:
            now, kind, _, number = heapq.heappop(self._heap)
            self._handle(kind, number, now)
        return FleetResult(
            outcomes=[self._outcomes[number] for number in sorted(self._outcomes)],
            computed_tokens=[replica.num_computed_prefill_tokens for replica in self._replicas],
            num_steps=sum(replica.num_steps for replica in self._replicas),
            num_preemptions=sum(replica.scheduler.num_preemptions for replica in self._replicas),
            num_resyncs=sum(router.num_resyncs for router in self._routers),
            makespan_seconds=now,
            loaded_tokens=sum((replica.loaded_tokens for replica in self._replicas), Counter()),
        )

    # What the replicas tell.

    def admitted(self, request: Request, now: float) -> None:
        outcome = self._sent[request.id].outcome
        outcome.admitted_at, outcome.hit_tokens = now, request.num_cached_tokens or 0

    def loaded(self, request: Request, now: float) -> None:
        if not request.num_preemptions:
            self._sent[request.id].outcome.hit_tokens = request.num_cached_tokens or 0

    def first_token(self, request: Request, now: float) -> None:
        sent = self._sent[request.id]
        sent.outcome.first_token_at = now + self._config.transit_seconds
        self._push(sent.outcome.first_token_at, _Kind.FIRST_TOKEN, sent.outcome.number)

    def finished(self, request: Request, now: float) -> None:
        sent = self._sent[request.id]
        sent.outcome.finished_at = now + self._config.transit_seconds
        self._push(sent.outcome.finished_at, _Kind.FINISHED, sent.outcome.number)

    # What happens when.

    def _push(self, moment: float, kind: _Kind, number: int) -> None:
        self._num_pushed += 1
        heapq.heappush(self._heap, (moment, kind, self._num_pushed, number))

    def _handle(self, kind: int, number: int, now: float) -> None:
        if kind == _Kind.WAKE:
            if self._wakes_at[number] == now:  # else it was put off or brought forward meanwhile
                self._wakes_at[number] = None
                self._replicas[number].advance(now)
                self._wake_later(number)
        elif kind == _Kind.AT_INGRESS:
            self._route(number, now)
        elif kind == _Kind.AT_REPLICA:
            self._queue(self._sent[f"r{number}"], now)
        elif kind == _Kind.FIRST_TOKEN:
            self._sent[f"r{number}"].router.state.first_token(f"r{number}", now)
        else:
            self._end(number, now)

    def _wake_later(self, number: int) -> None:
        wakes_at = self._replicas[number].wakes_at
        if wakes_at is not None and wakes_at != self._wakes_at[number]:
            self._push(wakes_at, _Kind.WAKE, number)
        self._wakes_at[number] = wakes_at

    def _route(self, number: int, now: float) -> None:
        for position, replica in enumerate(self._replicas):
            replica.advance(now)
            self._wake_later(position)
        asked = self._trace.requests[number]
        request_id = f"r{number}"
        router = self._routers[number % len(self._routers)]
        others = [other for other in self._routers if other is not router]
        route_request = RouteRequest(
            request_id, asked.prompt_ids, self._max_new_tokens, session_id=asked.session or None
        )
        decision = router.route(route_request, now, others)
        self._forget_read_batches()
        message = GenerateRequest(
            request_id, list(asked.prompt_ids), SamplingParams(max_tokens=asked.num_new_tokens, temperature=0.0), now
        )
        if decision.pull_tokens:
            source = PageAddress.from_text(decision.pull_from, decision.pages_at)
            message = replace(message, pull=Pull(source, decision.predicted_hit_tokens + decision.pull_tokens))
        num_prompt = len(asked.prompt_ids)
        request = Request(message, num_prompt + asked.num_new_tokens, list(decision.block_keys))
        answer = asked.answer_ids or Random(f"answer {number}").choices(range(VOCAB_SIZE), k=asked.num_new_tokens)
        outcome = RequestOutcome(number, now, num_prompt, asked.num_new_tokens)
        outcome.replica = self._numbers[decision.replica_id]
        self._outcomes[number] = outcome
        self._sent[request_id] = _Sent(request, outcome.replica, router, outcome, answer)
        self._push(now + self._config.transit_seconds, _Kind.AT_REPLICA, number)

    def _queue(self, sent: _Sent, now: float) -> None:
        replica = self._replicas[sent.replica]
        replica.advance(now)
        sent.outcome.queued_at = now
        replica.add(sent.request, sent.answer, now)
        self._wake_later(sent.replica)

    def _end(self, number: int, now: float) -> None:
        sent = self._sent.pop(f"r{number}")
        sent.router.state.end(f"r{number}", now)
        if self._on_done is not None:
            self._on_done()
        following = self._plan.after(number, now)
        if following is not None:
            self._push(following[0], _Kind.AT_INGRESS, following[1])

    def _forget_read_batches(self) -> None:
        """A batch that every router has read is gone, as the stream's bound would make it."""
        for replica in self._replicas:
            num_read = min(router.num_read(replica.replica_id) for router in self._routers)
            while replica.batches and replica.batches[0].batch.seq <= num_read:
                replica.batches.popleft()
