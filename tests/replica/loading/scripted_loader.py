"""A loader without threads: a test says when which pages come, and what happens to them on their way."""

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from cache.tiers.colder_tiers import ColderTiers
from cache.tiers.host import Blob
from replica.engine.loads import PEER, LoadedPages, PageLoad
from replica.loading.page_memory import PageMemory
from replica.loading.page_source import EnginePages
from replica.transfer.page_protocol import checksum

NO_PEERS: Mapping[str, EnginePages] = {}


class ScriptedLoader:
    """Pages come by `arrive`, what is under way ends by `fail` or with its last page."""

    def __init__(self, memory: PageMemory, tiers: ColderTiers | None, peers: Mapping[str, EnginePages] = NO_PEERS):
        """peers: who may be asked, by their names."""
        self.on_end: Callable[[], None] = lambda: None
        self.loads: dict[str, PageLoad] = {}
        self._memory = memory
        self._tiers = tiers
        self._peers = peers
        self._num_pages: dict[str, Counter[str]] = {}
        self._failures: dict[str, str | None] = {}

    @property
    def can_pull(self) -> bool:
        return bool(self._peers)

    def start(self, load: PageLoad) -> None:
        self.loads[load.request_id] = load
        self._num_pages[load.request_id] = Counter()

    def arrive(self, request_id: str, num_pages: int = 1, fault: str = "") -> None:
        """The next pages, of which the tiers may have lost some meanwhile. fault: of what a peer sends."""
        load, come = self.loads[request_id], self._num_pages[request_id]
        for _ in range(num_pages):
            if come.total() == len(load.page_ids) or request_id in self._failures:
                break
            tier = self._from_tiers(load, come.total())
            # What follows a page that a peer gave is asked of the peer, too.
            if PEER in come or tier is None:
                tier = self._from_peer(load, come.total(), fault)
            if tier is None:
                self._failures[request_id] = "gone"
            else:
                come[tier] += 1
        if come.total() == len(load.page_ids):
            self._failures.setdefault(request_id, None)

    def _from_tiers(self, load: PageLoad, at: int) -> str | None:
        def write(blob: Blob) -> bool:
            self._memory.write(load.page_ids[at], blob)
            return True

        return None if self._tiers is None else self._tiers.read(load.page_keys[at], write)

    def _from_peer(self, load: PageLoad, at: int, fault: str) -> str | None:
        """None, and perhaps half a page of bytes in the page's place, where it did not come whole and right."""
        peer = self._peers.get(load.source.replica_id) if load.source is not None else None
        if peer is None:
            return None
        key, page = load.page_keys[at], np.empty(peer.page_bytes, np.uint8)
        if not peer.read_page(key, page.data):
            return None
        announced = checksum(key, page.data)
        match fault:
            case "corrupt":
                page[len(page) // 2] ^= 1
            case "reorder":
                other = load.page_keys[at - 1]
                if len(load.page_keys) == 1 or not peer.read_page(other, page.data):
                    return None
                announced = checksum(other, page.data)
            case "truncate":
                self._memory.bytes_of(load.page_ids[at])[: len(page) // 2] = page[: len(page) // 2]
                return None
        if checksum(key, page.data) != announced:
            return None
        self._memory.write(load.page_ids[at], page)
        return PEER

    def fail(self, request_id: str, garbage: bool) -> None:
        """garbage: the page that was to come next is half written, as by a transfer that died in the middle."""
        load, come = self.loads[request_id], self._num_pages[request_id].total()
        if garbage and come < len(load.page_ids):
            self._memory.write(load.page_ids[come], np.full(self._memory.page_bytes, 0xFF, np.uint8))
        self._failures.setdefault(request_id, "died")

    def arrive_all(self) -> None:
        for request_id, load in self.loads.items():
            self.arrive(request_id, len(load.page_ids))

    def has_ended(self, request_id: str) -> bool:
        return request_id in self._failures

    def end(self, request_id: str) -> LoadedPages:
        del self.loads[request_id]
        return LoadedPages(self._num_pages.pop(request_id), 0.5, self._failures.pop(request_id, "late"))

    def close(self) -> None:
        self.loads.clear()
