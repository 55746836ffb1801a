"""What is counted and told of an engine's work: each request once, whatever becomes of it."""

import logging
from collections.abc import Callable, Sequence

from cache.events import KVEvent
from replica.engine.load import MeasuredSpeed
from replica.engine.loads import LoadedPages
from replica.engine.observer import EngineCounters, EngineObserver
from replica.messages import FinishReason, GenerateRequest
from replica.plan import StepPlan
from replica.request import Request, RequestState, RequestTimes

logger = logging.getLogger(__name__)


class Bookkeeping:
    """The engine's thread alone calls it. An observer that fails costs no request its answer."""

    def __init__(self, observer: EngineObserver, clock: Callable[[], float]):
        self.counters = EngineCounters()
        self.speed = MeasuredSpeed()
        self.observer = observer
        self._clock = clock
        self._times: dict[str, RequestTimes] = {}

    def rejected(self) -> None:
        self.counters.num_finished[FinishReason.REJECTED] += 1

    def queued(self, message: GenerateRequest) -> None:
        self._times[message.request_id] = RequestTimes(message.arrival_seconds, queued=self._clock())

    def admitted(self, plan: StepPlan, now: float) -> None:
        for request in plan.admitted:
            if not request.num_preemptions:  # counted once, at the first admission (A27)
                self._notify(self.observer.admitted, now - self._times[request.id].queued)
                self.counters.num_prompt_tokens += request.num_prompt_tokens
                if request.state is RequestState.RUNNING:
                    self._hits(request)

    def loaded(self, request: Request, pages: LoadedPages, page_size: int, page_bytes: int) -> None:
        counters = self.counters
        for tier, seconds in pages.tier_seconds.items():
            num_bytes = pages.num_pages.get(tier, 0) * page_bytes
            self.speed.observe_load(tier, num_bytes, seconds)
            counters.load_seconds[tier] += seconds
            counters.num_loaded_bytes[tier] += num_bytes
        if not request.num_preemptions:
            self._hits(request, pages.seconds)
            for tier, num_pages in pages.num_pages.items():
                counters.num_loaded_tokens[tier] += num_pages * page_size
        if pages.failure is not None:
            counters.num_failed_loads[pages.failure] += 1

    def _hits(self, request: Request, load_seconds: float = 0.0) -> None:
        """Saved is what computing would have taken longer than loading did."""
        num_cached = request.num_cached_tokens or 0
        self.counters.num_hit_tokens += num_cached
        self.counters.prefill_saved_seconds += max(0.0, self.speed.prefill_seconds(num_cached) - load_seconds)

    def step(self, plan: StepPlan, seconds: float) -> None:
        self.counters.num_steps += 1
        self.counters.num_computed_positions += plan.num_tokens
        self.speed.observe(plan, seconds)

    def token(self, request: Request) -> None:
        now, times = self._clock(), self._times[request.id]
        self.counters.num_generated_tokens += 1
        if times.last_token is None:
            self._notify(self.observer.first_token, now - times.arrived)
        else:
            self._notify(self.observer.next_token, now - times.last_token)
        times.last_token = now

    def finished(self, request: Request, reason: FinishReason) -> None:
        self.counters.num_finished[reason] += 1
        self._notify(self.observer.finished, reason, self._clock() - self._times.pop(request.id).arrived)

    def kv_events(self, events: Sequence[KVEvent]) -> None:
        self._notify(self.observer.kv_events, events)

    def _notify(self, notify: Callable[..., None], *what: object) -> None:
        try:
            notify(*what)
        except Exception:
            logger.exception("the engine's observer failed")
