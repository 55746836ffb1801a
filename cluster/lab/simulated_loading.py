"""Pages on their way in virtual time: from a replica's own memory, and from other replicas over shared links."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cache.block_hasher import BlockKey
from cache.kv_cache_manager import KVCacheManager
from cache.tiers.colder_tiers import ColderTiers
from cache.tiers.host import Blob, HostTier
from replica.engine.loads import PEER, LoadedPages, PageLoad
from replica.transfer.transfer import PullEnd

_NO_BYTES = np.zeros(1, np.uint8)
"""A simulated page has one byte in a host tier: what it holds stands in its key."""


def simulated_tiers(num_host_pages: int) -> ColderTiers | None:
    """The cache's own tiers, for so many pages in the replica's memory; None for none."""
    if not num_host_pages:
        return None
    return ColderTiers(HostTier(num_host_pages, 1), None, 1, lambda page_id: _NO_BYTES)


class Links:
    """Each replica has one way out and one way in. Transfers over one of them follow each other in the order in which
    they begin: each has its turn later than by an even share, and all together take as long."""

    def __init__(self, num_replicas: int, bytes_per_second: float, latency_seconds: float):
        self._bytes_per_second, self._latency_seconds = bytes_per_second, latency_seconds
        self._out_free = [0.0] * num_replicas
        self._in_free = [0.0] * num_replicas

    def transfer(self, giver: int, taker: int, num_bytes: float, now: float) -> tuple[float, float]:
        """When its first byte leaves, and when its last byte is there."""
        begins = max(now + self._latency_seconds, self._out_free[giver], self._in_free[taker])
        ends = begins + num_bytes / self._bytes_per_second
        self._out_free[giver] = self._in_free[taker] = ends
        return begins, ends


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """host_pages come until `host_end`, evenly, peer_pages from `peer_begin` to `peer_end`."""

    started: float
    host_pages: int
    host_end: float
    peer_pages: int
    peer_begin: float
    peer_end: float
    failure: str | None

    def by(self, now: float) -> LoadedPages:
        host = _come(self.host_pages, self.started, self.host_end, now)
        peer = _come(self.peer_pages, self.peer_begin, self.peer_end, now)
        pages = {tier: number for tier, number in (("host", host), (PEER, peer)) if number}
        ended = now >= self.peer_end
        seconds = {"host": min(now, self.host_end) - self.started, PEER: min(now, self.peer_end) - self.host_end}
        seconds = {tier: spent for tier, spent in seconds.items() if spent > 0}
        return LoadedPages(pages, now - self.started, self.failure if ended else "late", seconds)


def _come(num_pages: int, begin: float, end: float, now: float) -> int:
    if now >= end:
        return num_pages
    return int(num_pages * max(0.0, now - begin) / (end - begin)) if end > begin else 0


class SimulatedLoader:
    """See `replica.engine.loads.PageLoader`. Who holds what is looked up as a load begins."""

    def __init__(
        self,
        number: int,
        managers: Mapping[str, KVCacheManager],
        numbers: Mapping[str, int],
        links: Links | None,
        own: KVCacheManager,
        page_bytes: float,
        host_bytes_per_second: float,
        clock: Callable[[], float],
    ):
        """managers, numbers: of all replicas by id. links: None where nobody gives pages away."""
        self.on_end: Callable[[], None] = lambda: None
        self._number, self._managers, self._numbers, self._links = number, managers, numbers, links
        self._own, self._page_bytes, self._clock = own, page_bytes, clock
        self._host_bytes_per_second = host_bytes_per_second
        self._under_way: dict[str, _UnderWay] = {}

    @property
    def can_pull(self) -> bool:
        return self._links is not None

    @property
    def next_end(self) -> float:
        return min((load.peer_end for load in self._under_way.values()), default=float("inf"))

    def start(self, load: PageLoad) -> None:
        now = self._clock()
        host_pages = 0
        tiers = self._own.tiers
        while tiers is not None and host_pages < len(load.page_keys):
            if tiers.read(load.page_keys[host_pages], _take) is None:
                break
            host_pages += 1
        host_end = now + host_pages * self._page_bytes / self._host_bytes_per_second
        rest = load.page_keys[host_pages:]
        peer_pages, begin, end = 0, host_end, host_end
        if rest and load.source is not None and self._links is not None:
            giver = load.source.replica_id
            peer_pages = _num_held(self._managers[giver], rest)
            if peer_pages:
                num_bytes = peer_pages * self._page_bytes
                begin, end = self._links.transfer(self._numbers[giver], self._number, num_bytes, host_end)
        failure = load.failure(host_pages + peer_pages, PullEnd.MISSING)
        self._under_way[load.request_id] = _UnderWay(now, host_pages, host_end, peer_pages, begin, end, failure)

    def has_ended(self, request_id: str) -> bool:
        load = self._under_way.get(request_id)
        return load is None or self._clock() >= load.peer_end

    def end(self, request_id: str) -> LoadedPages:
        load = self._under_way.pop(request_id, None)
        return LoadedPages() if load is None else load.by(self._clock())

    def close(self) -> None:
        self._under_way.clear()


def _take(blob: Blob) -> bool:
    return True


def _num_held(manager: KVCacheManager, page_keys: Sequence[BlockKey]) -> int:
    """Leading ones that lie in its pool or its memory."""
    for number, key in enumerate(page_keys):
        if manager.pool.index.find(key) is None and (manager.tiers is None or manager.tiers.find(key) is None):
            return number
    return len(page_keys)
