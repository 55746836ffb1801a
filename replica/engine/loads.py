"""Requests whose pages are on their way: begun beside a step, taken over between two, given up when late."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cache.block_hasher import BlockKey
from replica.engine.load import MeasuredSpeed
from replica.engine.scheduler import Scheduler
from replica.messages import PageAddress
from replica.request import Request
from replica.transfer.transfer import PullEnd

PEER = "peer"
"""The tier of what another replica gave."""
LEAST_SECONDS = 0.1
"""A load may take so long even where computing would take less: a busy machine delays threads."""
UNMEASURED_SECONDS = 10.0
"""What computing may cost while nothing was measured."""


@dataclass(frozen=True, slots=True)
class PageLoad:
    """page_keys: the key of each page's last block, in the prompt's order. page_ids: where they are to lie.

    source: who is asked for what no tier has. seconds: how long it may take. num_expected: so many leading pages are
    known to be there, None: all; the source may have got more of them since, and says so if not.
    """

    request_id: str
    page_keys: Sequence[BlockKey]
    page_ids: Sequence[int]
    source: PageAddress | None = None
    seconds: float = UNMEASURED_SECONDS
    num_expected: int | None = None

    def failure(self, num_came: int, end: str) -> str | None:
        """end: why no more came. None where what was expected has come and the source has no more."""
        num_expected = len(self.page_keys) if self.num_expected is None else self.num_expected
        is_all = num_came == len(self.page_keys) or (num_came >= num_expected and end == PullEnd.MISSING)
        return None if is_all else end


@dataclass(frozen=True, slots=True)
class LoadedPages:
    """num_pages: leading pages that have come whole, by the tier they came from. seconds: since the load began.
    failure: why not all came, None where they did. tier_seconds: what each tier took of them."""

    num_pages: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str | None = None
    tier_seconds: Mapping[str, float] = field(default_factory=dict)


class PageLoader(Protocol):
    """Copies pages from colder tiers, in threads of its own. on_end: called by one of them when a load has ended."""

    on_end: Callable[[], None]

    @property
    def can_pull(self) -> bool:
        """Whether it can ask other replicas."""

    def start(self, load: PageLoad) -> None: ...

    def has_ended(self, request_id: str) -> bool:
        """Whether nothing more will come."""

    def end(self, request_id: str) -> LoadedPages:
        """When it returns no page of this load is written to any more; harmless where there is none."""

    def close(self) -> None: ...


class Loads:
    """A load may take as long as computing the same would; what has come by then is kept."""

    def __init__(
        self, scheduler: Scheduler, loader: PageLoader | None, speed: MeasuredSpeed, clock: Callable[[], float]
    ):
        self._scheduler = scheduler
        self._loader = loader
        self._speed = speed
        self._clock = clock
        self._late_at: dict[str, float] = {}

    @property
    def next_deadline(self) -> float | None:
        """On the clock; None where nothing is under way."""
        return min(self._late_at.values(), default=None)

    @property
    def any_due(self) -> bool:
        """Whether `take` would give something."""
        now = self._clock()
        return any(self._is_due(request_id, now) for request_id in self._late_at)

    def start(self, requests: Sequence[Request]) -> None:
        manager = self._scheduler.manager
        for request in requests:
            first = request.num_computed_tokens // manager.page_size
            num_expected = request.num_loading_pages
            pages = range(first, max(first + num_expected, self._end_of_ask(request)))
            keys = [request.block_keys[(page + 1) * manager.blocks_per_page - 1] for page in pages]
            num_tokens = num_expected * manager.page_size
            seconds = max(LEAST_SECONDS, self._speed.prefill_seconds(num_tokens) or UNMEASURED_SECONDS)
            self._late_at[request.id] = self._clock() + seconds
            page_ids = manager.block_table(request.id)[pages.start : pages.stop]
            source = request.message.pull.source if request.message.pull is not None else None
            if self._loader is not None:
                self._loader.start(PageLoad(request.id, keys, page_ids, source, seconds, num_expected))

    def _end_of_ask(self, request: Request) -> int:
        """The page behind the last one that a peer is asked for: all that the prompt can take, for the peer may have
        computed more since the router looked. 0 where no peer is to give anything."""
        if self._scheduler.num_pullable_tokens(request) <= request.num_computed_tokens:
            return 0
        return (request.num_tokens - 1) // self._scheduler.manager.page_size

    def take(self) -> list[tuple[Request, LoadedPages]]:
        """Loads that have ended, or are late; their requests run on from here."""
        now, taken = self._clock(), []
        for request in list(self._scheduler.loading):
            if self._is_due(request.id, now):
                pages = self.end(request.id)
                self._scheduler.loaded(request, sum(pages.num_pages.values()))
                taken.append((request, pages))
        return taken

    def end(self, request_id: str) -> LoadedPages:
        """Nothing is written into its pages any more; a no-op for who loads nothing."""
        if self._late_at.pop(request_id, None) is None or self._loader is None:
            return LoadedPages()
        return self._loader.end(request_id)

    def _is_due(self, request_id: str, now: float) -> bool:
        return self._loader is None or self._loader.has_ended(request_id) or now >= self._late_at[request_id]
