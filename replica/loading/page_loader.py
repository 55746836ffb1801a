"""Copies pages from colder tiers into the pool, in threads of its own."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from cache.block_hasher import BlockKey
from cache.tiers.host import Blob
from replica.engine.loads import LoadedPages, PageLoad

logger = logging.getLogger(__name__)

NUM_THREADS = 2


class Tiers(Protocol):
    """See `cache.tiers.colder_tiers.ColderTiers`."""

    def read(self, key: BlockKey, take: Callable[[Blob], bool]) -> str | None: ...


class Memory(Protocol):
    """See `PageMemory`."""

    def write(self, page_id: int, blob: Blob) -> None: ...


class _Load:
    """One load under way. `stop` waits at the longest for the page that is being written just then."""

    def __init__(self, load: PageLoad):
        self.load = load
        self._num_pages: Counter[str] = Counter()
        self.failure: str | None = None
        self.ended = False
        self._started = time.monotonic()
        self._stopped = False
        self._writing = threading.Lock()

    def write(self, memory: Memory, page_id: int, blob: Blob) -> bool:
        """False, and nothing is written, once it was stopped."""
        with self._writing:
            if not self._stopped:
                memory.write(page_id, blob)
            return not self._stopped

    def came(self, tier: str) -> None:
        with self._writing:
            if not self._stopped:
                self._num_pages[tier] += 1

    def stop(self) -> LoadedPages:
        failure = self.failure if self.ended else "late"
        self._stopped = True  # before the lock, which the next page might get first
        with self._writing:
            return LoadedPages(dict(self._num_pages), time.monotonic() - self._started, failure)


class PageLoader:
    """See `replica.engine.loads.PageLoader`. Pages of a load come one after another; what follows a page that nobody
    has any more is of no use, so the load ends there."""

    def __init__(self, memory: Memory, tiers: Tiers, on_end: Callable[[], None] = lambda: None):
        """on_end: called from a thread of this loader when a load has ended."""
        self.on_end = on_end
        self._memory = memory
        self._tiers = tiers
        self._loads: dict[str, _Load] = {}
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="page-loader")

    def start(self, load: PageLoad) -> None:
        found = self._loads[load.request_id] = _Load(load)
        self._threads.submit(self._run, found)

    def has_ended(self, request_id: str) -> bool:
        found = self._loads.get(request_id)
        return found is None or found.ended

    def end(self, request_id: str) -> LoadedPages:
        found = self._loads.pop(request_id, None)
        return LoadedPages() if found is None else found.stop()

    def close(self) -> None:
        for found in list(self._loads.values()):
            found.stop()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, load: _Load) -> None:
        try:
            for key, page_id in zip(load.load.page_keys, load.load.page_ids, strict=True):
                tier = self._tiers.read(key, partial(load.write, self._memory, page_id))
                if tier is None:
                    load.failure = "gone"
                    break
                load.came(tier)
        except Exception:
            logger.exception("pages could not be loaded, they are computed instead")
            load.failure = "fault"
        finally:
            load.ended = True
            self.on_end()
