"""Decides what the next step computes: continuous batching with chunked prefill."""

from bisect import insort
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import count, takewhile

from cache.block_hasher import BlockHasher
from cache.kv_cache_manager import NO_MATCH, KVCacheManager, PrefixMatch
from replica.engine.inflight_prefixes import InflightPrefixes
from replica.plan import StepPlan
from replica.request import Request, RequestState

MAX_SKIP_AHEAD = 16
"""How many waiting requests that do not fit now are passed over in one step (A23)."""
MAX_SKIPS = 64
"""After so many steps of being passed over, a request lets nobody pass any more."""
MAX_SHARE_WAITS = 64
"""How many steps a request waits for a prefix that another one is computing (A12)."""
MAX_LOGIT_ROWS = 256
"""Prompt tokens of a request per step where each needs logits: a row is as wide as the vocabulary."""


class Scheduler:
    """One token budget per step, shared by decodes first and then by prompts, running and waiting ones, by their rank.

    A prompt's rank is its request's priority, then the prompt tokens computed before it came plus its own, as finish
    tags in fair queueing: a short prompt need not wait for a long one, and a long one is passed only by prompts that
    come before as much as its own length has been computed, so that nobody starves. Who was preempted comes first.

    Synchronous and deterministic; no clock, no I/O. Pages for the whole prompt are taken at admission, so that only
    decodes can run out of pages; then the newest running request of the lowest priority is preempted and will be
    computed again. The oldest of the highest priority is never preempted for another one, and each request fits the
    pool alone, so the fleet always moves (48, A24).
    """

    def __init__(
        self,
        manager: KVCacheManager,
        hasher: BlockHasher,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        watermark_pages: int = 0,
    ):
        self.manager = manager
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.loading: list[Request] = []
        self.can_pull = False  # pages of other replicas
        self.stop_loading: Callable[[Request], object] = lambda request: None
        """Nothing is written into the request's pages when this returns."""
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.num_inflight_shared_tokens = 0
        self._hasher = hasher
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._watermark_pages = watermark_pages
        self._inflight = InflightPrefixes()  # of running requests
        self._queued = InflightPrefixes()  # of waiting ones
        self._arrived: list[Request] = []
        self._arrivals = count()
        self._num_planned_prompt_tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self.loading)

    @property
    def num_queued_prefill_tokens(self) -> int:
        """Prompt tokens that are still to be computed, running prefills included.

        What a waiting request found cached when it came is not among them, nor what others before it will compute:
        routers would take warm replicas for busy, and count a prefix once for each of its siblings.
        """
        running = sum(request.num_uncomputed_tokens for request in self.running if request.is_prefilling)
        for request in self.loading:
            running += request.num_uncomputed_tokens - request.num_loading_pages * self.manager.page_size
        return running + sum(request.num_uncomputed_tokens - request.num_found_at_arrival for request in self.waiting)

    def add(self, request: Request) -> None:
        request.num_cached_at_arrival = self._num_reusable_tokens(request)
        request.num_found_at_arrival = request.num_cached_at_arrival
        if self.manager.prefix_caching and not request.wants_prompt_logprobs:
            missing = request.block_keys[request.num_cached_at_arrival // self.manager.block_size :]
            expected = takewhile(lambda key: key in self._inflight or key in self._queued, missing)
            request.num_found_at_arrival += sum(1 for _ in expected) * self.manager.block_size
            self._queued.begin(request.id, missing)
        request.num_found_at_arrival = max(request.num_found_at_arrival, self.num_pullable_tokens(request))
        self.waiting.append(request)
        self._arrived.append(request)

    def schedule(self) -> StepPlan:
        """Plans one step; an empty plan means that nothing can run. The caller runs it and calls `commit`."""
        plan = StepPlan()
        self._rank_arrivals()
        num_decodes = self._schedule_decodes(plan)
        self._schedule_prompts(plan, self._max_num_batched_tokens - num_decodes)
        plan.copies = self.manager.take_copies()
        return plan

    def _rank_arrivals(self) -> None:
        """At a step's edge, when all that was computed can be hit. What a peer is to give is not computed: else a
        sibling without a peer would come first, and compute it."""
        if not self._arrived:
            return
        for request in self._arrived:
            num_known = max(self._num_reusable_tokens(request), self.num_pullable_tokens(request))
            tag = self._num_planned_prompt_tokens + request.num_tokens - num_known
            request.rank = (request.message.priority, tag, next(self._arrivals))
        self._arrived.clear()
        self.waiting.sort(key=_rank)

    def _schedule_decodes(self, plan: StepPlan) -> int:
        for request in list(self.running):
            if request.state is RequestState.RUNNING and not request.is_prefilling and self._make_room(request, plan):
                plan.add(request, 1)
        return len(plan.scheduled)

    def _make_room(self, request: Request, plan: StepPlan) -> bool:
        """Gets the request a page for its newest token; False where it had to be preempted itself."""
        while not self.manager.grow(request.id, request.num_tokens):
            victim = self._victim()
            self._preempt(victim)
            plan.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _victim(self) -> Request:
        """Whose pages a decode gets: of the lowest priority who loads, having computed nothing yet, else the newest.

        Running requests stand in order of priority and admission and decodes are planned in that order, so the victim
        is never in the plan already."""
        newest = self.running[-1]
        loading = max(reversed(self.loading), key=_priority, default=newest)
        return loading if _priority(loading) >= _priority(newest) else newest

    def _preempt(self, victim: Request) -> None:
        if victim.state is RequestState.LOADING:
            self.stop_loading(victim)
            self.loading.remove(victim)
            victim.num_loading_pages = 0
            self._let_go(victim)
        else:
            self._leave_running(victim)
        victim.state = RequestState.WAITING
        victim.num_preemptions += 1
        victim.num_computed_tokens = 0
        self.num_preemptions += 1
        victim.rank = (victim.message.priority, -1, victim.rank[2])
        insort(self.waiting, victim, key=_rank)

    def _schedule_prompts(self, plan: StepPlan, budget: int) -> None:
        prefilling = sorted((request for request in self.running if request.is_prefilling), key=_rank)
        # Who was just thrown out for want of pages must not come back in the same step.
        candidates = self._candidates() if not plan.preempted else iter(())
        for request in merge(prefilling, candidates, key=_rank):
            if not budget:
                break
            if request.state is RequestState.RUNNING or self._admit(plan, request):
                budget -= self._add_chunk(plan, request, budget)

    def _add_chunk(self, plan: StepPlan, request: Request, budget: int) -> int:
        """Plans as much of the request as the budget allows; returns how many tokens that is."""
        num_tokens = min(request.num_uncomputed_tokens, budget)
        if request.wants_prompt_logprobs:
            num_tokens = min(num_tokens, MAX_LOGIT_ROWS)
        plan.add(request, num_tokens)
        self._num_planned_prompt_tokens += num_tokens
        return num_tokens

    def _match(self, request: Request) -> PrefixMatch:
        if request.wants_prompt_logprobs:  # what comes from the cache has no logits (C43)
            return NO_MATCH
        return self.manager.match(request.block_keys, request.num_tokens)

    def _admit(self, plan: StepPlan, request: Request) -> bool:
        """Makes a waiting request run, if it may and can."""
        if len(self.running) + len(self.loading) >= self._max_num_seqs:
            return False
        match = self._match(request)
        if self._waits_for_prefix(request, match):
            return False
        num_loadable = self._num_loadable_pages(request, match)
        if num_loadable:
            match = match.whole_pages(self.manager.page_size)
        if not self._fits(request, match):
            request.num_skips += 1
            return False
        self.waiting.remove(request)
        self._take_pages(request, match)
        plan.admitted.append(request)
        if num_loadable:
            request.state, request.num_loading_pages = RequestState.LOADING, num_loadable
            self.loading.append(request)
            plan.loading.append(request)
            return False
        self._start(request)
        return True

    def _candidates(self) -> Iterator[Request]:
        """Waiting requests by rank, ending behind the first that was passed over too often."""
        for position, request in enumerate(list(self.waiting)):
            if position > MAX_SKIP_AHEAD:
                return
            yield request
            if request.state is RequestState.WAITING and request.num_skips >= MAX_SKIPS:
                return

    def _waits_for_prefix(self, request: Request, match: PrefixMatch) -> bool:
        """Whether somebody computes or loads a good part of what the request lacks right now; bounded."""
        if not self.manager.prefix_caching or request.wants_prompt_logprobs:
            return False
        if request.num_share_waits >= MAX_SHARE_WAITS:
            return False
        num_matched = match.num_tokens // self.manager.block_size
        num_shared = self._inflight.num_leading(request.block_keys[num_matched:])
        if 4 * num_shared * self.manager.block_size < request.num_tokens - match.num_tokens:
            return False
        owner = self._inflight.owner_of(request.block_keys[num_matched])
        if all(loading.id != owner for loading in self.loading):  # those are bounded in seconds
            request.num_share_waits += 1
        return True

    def _fits(self, request: Request, match: PrefixMatch) -> bool:
        """Leaves the watermark free, as headroom for running decodes, unless nothing runs (49)."""
        headroom = self._watermark_pages if self.running else 0
        needed = self.manager.num_new_pages(match, request.num_tokens)
        return needed + headroom <= self.manager.pool.num_free

    def _num_reusable_tokens(self, request: Request) -> int:
        return (
            0
            if request.wants_prompt_logprobs
            else self.manager.num_reusable_tokens(request.block_keys, request.num_tokens)
        )

    def _num_loadable_pages(self, request: Request, match: PrefixMatch) -> int:
        """Behind the match: in colder tiers or, at first, with a peer that the router named."""
        if request.wants_prompt_logprobs:
            return 0
        num_pages = self.manager.num_loadable_pages(request.block_keys, match, request.num_tokens)
        num_held = self.num_pullable_tokens(request) // self.manager.page_size
        return max(num_pages, num_held - len(match.page_ids))

    def num_pullable_tokens(self, request: Request) -> int:
        """Of its first pages, that the peer which the router named is to have."""
        pull = request.message.pull
        if pull is None or not self.can_pull or request.num_preemptions or request.wants_prompt_logprobs:
            return 0
        page_size = self.manager.page_size
        return min(pull.num_tokens, request.num_tokens - 1) // page_size * page_size

    def loaded(self, request: Request, num_pages: int) -> None:
        """So many of the pages that were under way have come; whatever else the prompt lacks is computed."""
        self.loading.remove(request)
        request.num_computed_tokens += num_pages * self.manager.page_size
        request.num_loading_pages = 0
        if num_pages:
            keys, computed = request.block_keys, request.num_computed_tokens
            self.manager.commit(request.id, keys, computed, request.token_ids, request.root_key)
        self._start(request)

    def _take_pages(self, request: Request, match: PrefixMatch) -> None:
        if not self.manager.admit(request.id, match, request.num_tokens):
            raise RuntimeError(f"the pool refused request {request.id} although it fits")
        self._queued.end(request.id)
        request.num_computed_tokens = match.num_tokens
        self._inflight.begin(request.id, request.block_keys[match.num_tokens // self.manager.block_size :])

    def _start(self, request: Request) -> None:
        """What it has of the cache by now it need not compute."""
        request.state, num_tokens = RequestState.RUNNING, request.num_computed_tokens
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_tokens
            # What others computed while it waited: work shared in flight, not a cache hit of old.
            self.num_inflight_shared_tokens += max(0, num_tokens - request.num_cached_at_arrival)
        else:  # what a preempted request finds again of its own is no hit, and what it lacks is work done twice (A27)
            self.num_recomputed_tokens += request.num_tokens - num_tokens
        insort(self.running, request, key=_priority)  # behind those of its priority

    def commit(self, plan: StepPlan) -> None:
        """The step's forward pass has ended: its positions are computed and its full blocks can be hit."""
        block_size = self.manager.block_size
        for item in plan.scheduled:
            request, computed = item.request, item.start + item.num_tokens
            request.num_computed_tokens = computed
            if computed // block_size > item.start // block_size:  # most decodes fill no block
                self.manager.commit(request.id, request.block_keys, computed, request.token_ids, request.root_key)
            if not request.num_uncomputed_tokens:
                self._inflight.end(request.id)

    def append_token(self, request: Request, token_id: int) -> None:
        request.token_ids.append(token_id)
        if request.num_tokens % self._hasher.block_size == 0:
            extra = request.message.extra_keys
            request.block_keys = self._hasher.keys(request.token_ids, extra, known=request.block_keys)

    def release(self, request: Request) -> None:
        """The one way out for finish, abort, timeout and error, in every state; doing it twice is harmless (A18).

        Of a LOADING one nothing may be written into its pages any more."""
        if request.state is RequestState.RUNNING:
            self._leave_running(request)
        elif request.state is RequestState.LOADING:
            self.loading.remove(request)
            self._let_go(request)
        elif request.state is RequestState.WAITING:
            self._queued.end(request.id)
            self.waiting.remove(request)
        request.state = RequestState.FINISHED

    def _leave_running(self, request: Request) -> None:
        self.running.remove(request)
        self._let_go(request)

    def _let_go(self, request: Request) -> None:
        self._inflight.end(request.id)
        self.manager.release(request.id)


def _rank(request: Request) -> tuple[int, int, int]:
    return request.rank


def _priority(request: Request) -> int:
    return request.message.priority
