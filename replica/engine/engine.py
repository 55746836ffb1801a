"""The engine's step: schedule, compute, sample, give out."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from cache.block_hasher import BlockHasher
from cache.kv_cache_manager import KVCacheManager
from replica.engine.admission import AdmissionChecks
from replica.engine.bookkeeping import Bookkeeping
from replica.engine.load import MeasuredSpeed
from replica.engine.loads import Loads, PageLoader
from replica.engine.observer import EngineCounters, EngineObserver
from replica.engine.output_processor import OutputProcessor, Vocabulary
from replica.engine.scheduler import Scheduler
from replica.errors import EngineOverloaded, RequestRefused
from replica.messages import FinishReason, GenerateRequest, TokenChunk, TokenLogprobs, Usage
from replica.model.forward_pass import ForwardPass
from replica.model.runner import BlockTableOf
from replica.model.step_logits import StepLogits
from replica.plan import StepPlan
from replica.request import Request, RequestState
from replica.transfer.transfer import GivenPages, Transfer

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """The forward pass: the real model, or a cost model in the lab."""

    def run(self, plan: StepPlan, block_table_of: BlockTableOf) -> torch.Tensor: ...


class Engine:
    """Synchronous and single-threaded: `add`, `abort` and `step` are called by one thread, in any order.

    Every request leaves through `_finish`, whatever ended it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        vocabulary: Vocabulary,
        hasher: BlockHasher,
        *,
        max_waiting_requests: int,
        max_waiting_tokens: int,
        longest_window: int | None = None,
        loader: PageLoader | None = None,
        observer: EngineObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.scheduler = scheduler
        self.books = Bookkeeping(observer or EngineObserver(), clock)
        self.forward_pass: ForwardPass | None = None
        """What the runner is, where a real one runs."""
        self.page_source: GivenPages | None = None
        """What peers may have of its pages, where they may."""
        self.page_transfer: Transfer | None = None
        """How it has pages of peers, where it may."""
        self.num_importing_pages = 0
        """Held by no request, but for what comes from other replicas before anybody asks for it."""
        self.page_bytes = 0
        """Of one page of the pool, where a real one lies behind it."""
        self._runner = runner
        self._vocabulary = vocabulary
        self._hasher = hasher
        self._checks = AdmissionChecks(
            vocab_size=vocabulary.vocab_size,
            window=vocabulary.max_model_len,
            pool_tokens=self.manager.pool.num_pages * self.manager.page_size,
            max_waiting_requests=max_waiting_requests,
            max_waiting_tokens=max_waiting_tokens,
        )
        self._longest_window = longest_window
        self._clock = clock
        self._outputs = OutputProcessor(vocabulary)
        self.loader = loader
        scheduler.can_pull = loader is not None and loader.can_pull
        self._loads = Loads(scheduler, loader, self.books.speed, clock)
        scheduler.stop_loading = lambda request: self._loads.end(request.id)
        self._only_waits = False
        self._requests: dict[str, Request] = {}

    @property
    def counters(self) -> EngineCounters:
        return self.books.counters

    @property
    def speed(self) -> MeasuredSpeed:
        return self.books.speed

    @property
    def manager(self) -> KVCacheManager:
        return self.scheduler.manager

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.vocab_size

    @property
    def longest_request_tokens(self) -> int:
        """The most tokens that prompt and answer of one request may have together."""
        return self._checks.longest_request_tokens

    @property
    def num_pages_out_of_window(self) -> int:
        """Pages of running requests that no windowed layer will read again; only full-attention layers still need them.

        The query at position p of a layer with window w sees the tokens p - w + 1 to p.
        """
        if self._longest_window is None:
            return 0
        unseen = (request.num_computed_tokens - self._longest_window + 1 for request in list(self.scheduler.running))
        return sum(max(0, num_tokens) // self.manager.page_size for num_tokens in unseen)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def can_step(self) -> bool:
        """There is work, and not all of it waits for pages that are on their way."""
        if not self._only_waits or self._loads.any_due:
            return self.has_work
        return bool(self._late_requests())

    @property
    def next_deadline(self) -> float | None:
        """When, on the clock, a load or a request is late next; None where nothing is loaded, for then steps look."""
        late_at = self._loads.next_deadline
        if late_at is None:
            return None
        deadlines = (request.message.deadline_seconds for request in self._requests.values())
        return min([late_at, *(deadline for deadline in deadlines if deadline is not None)])

    def add(self, message: GenerateRequest) -> None:
        """Queues a request. Raises RequestRefused for what can never be served and EngineOverloaded for what can not
        be served now; nothing but the count of rejected requests changes then (A22, A39)."""
        try:
            if message.request_id in self._requests:
                raise RequestRefused(f"request {message.request_id} is running already", param="request_id")
            max_total_tokens = self._checks.max_total_tokens(message)
            self._checks.check_queue(self.scheduler, len(message.token_ids))
            self._outputs.begin(message)
        except (RequestRefused, EngineOverloaded):
            self.books.rejected()
            raise
        keys = self._hasher.keys(message.token_ids, message.extra_keys)
        request = Request(message, max_total_tokens, keys, self._hasher.root(message.extra_keys))
        self.books.queued(message)
        self._requests[request.id] = request
        self.scheduler.add(request)
        self._only_waits = False

    def num_uncached_tokens(self, message: GenerateRequest) -> int:
        """What would have to be computed of this prompt now; may be called from any thread, for an estimate of load."""
        keys = self._hasher.keys(message.token_ids, message.extra_keys)
        return len(message.token_ids) - self.manager.num_reusable_tokens(keys, len(message.token_ids))

    def prepare(self, message: GenerateRequest) -> None:
        """Does what `add` would have to wait for; may be called from any thread. Raises RequestRefused."""
        self._outputs.prepare(message)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> TokenChunk | None:
        """Ends a request in whatever state; None for one that is unknown or has ended (A16)."""
        request = self._requests.get(request_id)
        return None if request is None else self._finish(request, reason)

    def step(self) -> list[TokenChunk]:
        """Computes one step. An exception inside ends the requests of this step alone; the engine lives on."""
        chunks = self._expire()
        for request, pages in self._loads.take():
            self.books.loaded(request, pages, self.manager.page_size, self.page_bytes)
        plan = self.scheduler.schedule()
        started = self._clock()
        self.books.admitted(plan, started)
        if not plan.copies:  # else a page might be written to that is still to be copied
            self._loads.start(plan.loading)
        if plan.scheduled:
            try:
                logits = self._runner.run(plan, self.manager.block_table)
                rows = StepLogits(plan, logits)
                rows.keep_prompt_logprobs()
                sampled = self._outputs.sample(rows)
                self.books.step(plan, self._clock() - started)
                self.scheduler.commit(plan)
            except Exception as error:
                logger.exception("engine step failed")
                self.counters.num_failed_steps += 1
                chunks += [self._fail(item.request, f"the engine's step failed: {error}") for item in plan.scheduled]
            else:
                chunks += [self._give_out(*each) for each in sampled]
        if plan.copies:
            self._loads.start(plan.loading)
        self._only_waits = not plan.scheduled and bool(self.scheduler.loading)
        self.publish_events()
        if not self.has_work:
            self._check_idle()
        return chunks

    def _check_idle(self) -> None:
        """Nobody runs, so nobody may hold a page (A19). Counted and logged, because the engine can go on."""
        num_held = self.manager.pool.num_active - self.num_importing_pages
        if num_held > self.counters.num_leaked_pages:
            logger.error("%d pages are held although no request runs", num_held)
            self.counters.num_leaked_pages = num_held

    def reset_prefix_cache(self) -> None:
        """Forgets all cached pages, those of colder tiers too; requests that run keep theirs."""
        self.manager.reset()
        self.publish_events()

    def publish_events(self) -> None:
        """Tells the observer which blocks came and went since the last time."""
        events = self.manager.take_events()
        if events:
            self.books.kv_events(events)

    def _expire(self) -> list[TokenChunk]:
        """Ends requests whose deadline has passed, before anything more is computed for them (53)."""
        late = self._late_requests()
        return [self._finish(request, FinishReason.TIMEOUT, error="the request's deadline passed") for request in late]

    def _late_requests(self) -> list[Request]:
        now = self._clock()
        return [
            request
            for request in self._requests.values()
            if request.message.deadline_seconds is not None and request.message.deadline_seconds <= now
        ]

    def _give_out(self, request: Request, token_id: int | None, logprobs: TokenLogprobs | None) -> TokenChunk:
        """Whatever goes wrong with one request's token ends that request and nobody else's."""
        try:
            return self._take_token(request, token_id, logprobs)
        except Exception as error:
            logger.exception("request %s failed when its token was given out", request.id)
            message = f"the engine could not give out a token: {type(error).__name__}: {error}"
            if request.state is RequestState.FINISHED:  # its pages are back already
                return TokenChunk(request.id, finish_reason=FinishReason.ERROR, error=message)
            return self._fail(request, message)

    def _take_token(self, request: Request, token_id: int | None, logprobs: TokenLogprobs | None) -> TokenChunk:
        if token_id is None:
            return self._fail(request, "the model gave logits that are not finite")
        if request.num_tokens >= request.max_total_tokens:  # max_tokens is 0: the prompt alone was wanted (12)
            return self._finish(request, FinishReason.LENGTH)
        self.scheduler.append_token(request, token_id)
        self.books.token(request)
        text, reason = self._outputs.read(request, token_id)
        own_logprobs = (logprobs,) if logprobs is not None else ()
        if reason is not None:
            return self._finish(request, reason, text, [token_id], logprobs=own_logprobs)
        return TokenChunk(request.id, text, [token_id], logprobs=own_logprobs, prompt_logprobs=_first_time(request))

    def _fail(self, request: Request, message: str) -> TokenChunk:
        return self._finish(request, FinishReason.ERROR, error=message)

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        text: str = "",
        token_ids: list[int] | None = None,
        error: str | None = None,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> TokenChunk:
        """The one way out (A18): pages, sampler, text, times and counters are settled once."""
        if request.state is RequestState.FINISHED:
            raise RuntimeError(f"request {request.id} was finished twice")
        self._loads.end(request.id)
        self.scheduler.release(request)
        self._only_waits = False  # its pages may be what a waiting request lacked
        self._outputs.forget(request.id)
        del self._requests[request.id]
        self.books.finished(request, reason)
        usage = Usage(request.num_prompt_tokens, request.num_generated_tokens, request.num_cached_tokens or 0)
        return TokenChunk(
            request.id, text, token_ids or [], reason, usage, error, logprobs, prompt_logprobs=_first_time(request)
        )


def _first_time(request: Request) -> Sequence[TokenLogprobs]:
    """The prompt's logprobs for the first chunk of a request, nothing for the later ones."""
    return request.prompt_logprobs if request.num_generated_tokens <= 1 else ()
