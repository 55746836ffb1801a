"""One replica in virtual time: the engine's own scheduler and cache, and a cost model for the forward pass."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from cache.block_hasher import BlockHasher
from cache.events import KVEvent
from cache.kv_cache_manager import KVCacheManager
from cache.wire.records import EventBatch, ReplicaLoad, ReplicaRegistration
from cache.wire.redis_keys import HEARTBEAT_SECONDS
from cluster.lab.cost_model import StepWork
from cluster.lab.decode_leap import DecodeLeap, num_quiet_steps
from cluster.lab.fleet_config import FleetConfig
from cluster.lab.load_history import LoadHistory
from cluster.lab.simulated_loading import Links, SimulatedLoader, simulated_tiers
from cluster.lab.step_clock import StepClock
from replica.engine.load import MeasuredSpeed, engine_load
from replica.engine.loads import Loads
from replica.engine.scheduler import Scheduler
from replica.plan import StepPlan
from replica.request import Request

IDLE_STEP_SECONDS = 0.001
"""A step that can run nothing: the engine looks again a moment later."""


class ReplicaListener(Protocol):
    """Told what happens to requests, with the moment."""

    def admitted(self, request: Request, now: float) -> None: ...

    def first_token(self, request: Request, now: float) -> None: ...

    def loaded(self, request: Request, now: float) -> None:
        """What was on its way to it has come, or did not in time."""

    def finished(self, request: Request, now: float) -> None: ...


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch of block events on its way to the routers. lost: it never arrives."""

    sent_at: float
    batch: EventBatch
    lost: bool


class SimulatedReplica:
    """Steps follow each other as in `Engine.step`: schedule, compute, commit, take tokens, tell the events.

    The caller keeps the time. It calls `advance(now)` when `wakes_at` has come, and may call it at any other moment to
    see the replica as it is then. What arrives is added after `advance` to the same moment.
    """

    def __init__(
        self,
        number: int,
        config: FleetConfig,
        hasher: BlockHasher,
        clock: StepClock,
        rng: Random,
        listener: ReplicaListener,
        block_bytes: float = 0.0,
    ):
        """rng: draws which event batches are lost. block_bytes: of a block's K and V."""
        self.replica_id = f"replica-{number:02d}"
        self.registration = ReplicaRegistration(
            self.replica_id,
            f"{number:032x}",
            hasher.canary,
            config.block_size,
            config.num_blocks,
            0.0,
            f"{self.replica_id} 0 " if config.pull else "",
            int(block_bytes),
        )
        self.scheduler = Scheduler(
            KVCacheManager(config.num_blocks, config.block_size, eviction=config.eviction),
            hasher,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            watermark_pages=int(config.num_blocks * config.watermark),
        )
        if (tiers := simulated_tiers(config.host_blocks)) is not None:
            self.scheduler.manager.attach(tiers)
        self.speed = MeasuredSpeed()
        self.loaded_tokens: Counter[str] = Counter()
        self._block_bytes = block_bytes
        self._now = 0.0
        self._loader: SimulatedLoader | None = None
        self._transfers = Loads(self.scheduler, None, self.speed, lambda: self._now)
        self.num_steps = 0
        self.num_computed_prefill_tokens = 0
        self.batches: deque[SentBatch] = deque()
        self.last_seq = 0
        self._config, self._clock, self._rng, self._listener = config, clock, rng, listener
        offset = HEARTBEAT_SECONDS * (number + 1) / (config.num_replicas + 1)  # replicas do not beat in step
        self._loads = LoadHistory(HEARTBEAT_SECONDS, offset, self._measure)
        self._answers: dict[str, Sequence[int]] = {}
        self._plan: StepPlan | None = None
        self._leap: DecodeLeap | None = None
        self._step_started = self._step_ends = 0.0

    def connect(self, managers: Mapping[str, KVCacheManager], numbers: Mapping[str, int], links: Links | None) -> None:
        """Pages come from its own memory and, where there are links, from the others from here on."""
        own, config = self.scheduler.manager, self._config
        self._loader = SimulatedLoader(
            numbers[self.replica_id],
            managers,
            numbers,
            links,
            own,
            self._block_bytes,
            config.host_bytes_per_second,
            lambda: self._now,
        )
        self.scheduler.can_pull = self._loader.can_pull
        self._transfers = Loads(self.scheduler, self._loader, self.speed, lambda: self._now)

    @property
    def wakes_at(self) -> float | None:
        """When the step or the run of decode steps ends that is being computed; None while idle."""
        if self._leap is not None:
            return self._leap.end
        return self._step_ends if self._plan is not None else None

    @property
    def loads(self) -> LoadHistory:
        return self._loads

    def add(self, request: Request, answer: Sequence[int], now: float) -> None:
        """The request has arrived at the engine's door; it may take part in the next step that begins.

        answer: the tokens that it will generate.
        """
        self._loads.before_change(now)
        self._answers[request.id] = answer
        self.scheduler.add(request)
        if self._leap is not None:
            self._leap.cut()
        elif self._plan is None or self._only_waits:
            self._begin_step(now)

    def advance(self, now: float) -> None:
        """Carries out all that ends by `now`."""
        while True:
            if self._leap is not None:
                self._advance_leap(now)
                if self._leap is not None:
                    break
            elif self._plan is not None and self._step_ends <= now:
                self._end_step(self._plan, self._step_ends)
            else:
                break
        self._loads.before_change(now)

    @property
    def _only_waits(self) -> bool:
        """Nothing is computed until pages have come."""
        return self._plan is not None and not self._plan.scheduled and bool(self.scheduler.loading)

    def _measure(self) -> tuple[ReplicaLoad, int]:
        return engine_load(self.scheduler, self.speed), self.last_seq

    def _begin_step(self, now: float) -> None:
        self._plan, self._leap, self._now = None, None, now
        if not self.scheduler.has_work:
            return
        self._take_loaded(now)
        may_leap = self._config.jump and not self.scheduler.loading  # whose pages come in the middle of some step
        num_steps = num_quiet_steps(self.scheduler, self._config.max_num_seqs) if may_leap else 0
        if num_steps > 1:
            self._leap = DecodeLeap(self.scheduler, self._clock, now, self.num_steps, num_steps, self._next_token)
            return
        self._loads.before_change(now)
        plan = self._plan = self.scheduler.schedule()
        for request in plan.admitted:
            if not request.num_preemptions:
                self._listener.admitted(request, now)
        self._transfers.start(plan.loading)
        self._step_started = now
        if plan.scheduled:
            self._step_ends = now + self._clock.seconds(StepWork.of(plan), self.num_steps)
        elif self._loader is not None and self.scheduler.loading:
            late_at = self._transfers.next_deadline
            ends = self._loader.next_end if late_at is None else min(self._loader.next_end, late_at)
            self._step_ends = max(now, ends)
        else:
            self._step_ends = now + IDLE_STEP_SECONDS

    def _take_loaded(self, now: float) -> None:
        for request, pages in self._transfers.take():
            for tier, seconds in pages.tier_seconds.items():
                num_pages = pages.num_pages.get(tier, 0)
                self.speed.observe_load(tier, int(num_pages * self._block_bytes), seconds)
                self.loaded_tokens[tier] += num_pages * self._config.block_size
            self._listener.loaded(request, now)

    def _end_step(self, plan: StepPlan, now: float) -> None:
        self._loads.before_change(now)
        if plan.scheduled:
            seconds = self._step_ends - self._step_started
            self.speed.observe(plan, seconds)
            self.num_steps += 1
            self.num_computed_prefill_tokens += plan.num_tokens - plan.num_decodes
            sampling = [item.request for item in plan.scheduled if item.samples]
            self.scheduler.commit(plan)
            for request in sampling:
                self.scheduler.append_token(request, self._next_token(request))
                if request.num_generated_tokens == 1:
                    self._listener.first_token(request, now)
            self._end_requests(sampling, now)
        self._publish_events(now)
        self._begin_step(now)

    def _advance_leap(self, now: float) -> None:
        leap = self._leap
        if leap is None:
            return
        for number in range(leap.num_done, leap.num_over(now)):
            moment = leap.ends[number]
            self._loads.before_change(moment)
            self.speed.observe_tokens(0, len(leap.requests), leap.seconds[number])
            self.num_steps += 1
            leap.step()
            if leap.num_done == len(leap.ends):
                self._end_requests(leap.requests, moment)
            self._publish_events(moment)
        if leap.num_done == len(leap.ends):
            self._begin_step(leap.end)

    def _end_requests(self, requests: Sequence[Request], now: float) -> None:
        for request in requests:
            if request.num_tokens >= request.max_total_tokens:
                self.scheduler.release(request)
                del self._answers[request.id]
                self._listener.finished(request, now)

    def _next_token(self, request: Request) -> int:
        return self._answers[request.id][request.num_generated_tokens]

    def _publish_events(self, now: float) -> None:
        events: list[KVEvent] = self.scheduler.manager.take_events()
        if events:
            self.last_seq += 1
            lost = self._config.event_loss > 0.0 and self._rng.random() < self._config.event_loss
            self.batches.append(SentBatch(now, EventBatch(self.last_seq, tuple(events)), lost))
