"""A loader without threads: a test says when which pages come."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from cache.tiers.colder_tiers import ColderTiers
from replica.engine.loads import LoadedPages, PageLoad
from replica.loading.page_memory import PageMemory


class ScriptedLoader:
    """Pages come by `arrive`, what is under way ends by `fail` or with its last page."""

    def __init__(self, memory: PageMemory, tiers: ColderTiers):
        self.on_end: Callable[[], None] = lambda: None
        self.loads: dict[str, PageLoad] = {}
        self._memory = memory
        self._tiers = tiers
        self._num_pages: dict[str, Counter[str]] = {}
        self._failures: dict[str, str | None] = {}

    @property
    def can_pull(self) -> bool:
        return False

    def start(self, load: PageLoad) -> None:
        self.loads[load.request_id] = load
        self._num_pages[load.request_id] = Counter()

    def arrive(self, request_id: str, num_pages: int = 1) -> None:
        """The next pages, of which the tiers may have lost some meanwhile."""
        load, come = self.loads[request_id], self._num_pages[request_id]
        for _ in range(num_pages):
            at = come.total()
            if at == len(load.page_ids) or request_id in self._failures:
                break
            page_id = load.page_ids[at]

            def write(blob: np.ndarray, page_id: int = page_id) -> bool:
                self._memory.write(page_id, blob)
                return True

            tier = self._tiers.read(load.page_keys[at], write)
            if tier is None:
                self._failures[request_id] = "gone"
            else:
                come[tier] += 1
        if come.total() == len(load.page_ids):
            self._failures.setdefault(request_id, None)

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
