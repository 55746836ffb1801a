"""Copies pages from colder tiers and from peers into the pool, in threads of its own."""

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np

from cache.block_hasher import BlockKey
from cache.tiers.host import Blob
from replica.engine.loads import PEER, LoadedPages, PageLoad
from replica.transfer.transfer import Transfer

logger = logging.getLogger(__name__)

NUM_THREADS = 4


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
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.failure: str | None = None
        self.ended = False
        self.started = time.monotonic()
        self.stopped = False
        self._writing = threading.Lock()

    def write(self, memory: Memory, page_id: int, blob: Blob) -> bool:
        """False, and nothing is written, once it was stopped."""
        with self._writing:
            if not self.stopped:
                memory.write(page_id, blob)
            return not self.stopped

    def came(self, tier: str) -> None:
        with self._writing:
            if not self.stopped:
                self._num_pages[tier] += 1

    def took(self, tier: str, seconds: float) -> None:
        with self._writing:
            self._seconds[tier] += seconds

    def stop(self) -> LoadedPages:
        failure = self.failure if self.ended else "late"
        self.stopped = True  # before the lock, which the next page might get first
        with self._writing:
            return LoadedPages(dict(self._num_pages), time.monotonic() - self.started, failure, dict(self._seconds))


class PageLoader:
    """See `replica.engine.loads.PageLoader`. Pages of a load come one after another; what follows a page that nobody
    has any more is of no use, so the load ends there."""

    def __init__(self, memory: Memory, tiers: Tiers | None, transfer: Transfer | None = None):
        """transfer: asks peers; None where nobody may be asked."""
        self.on_end: Callable[[], None] = lambda: None
        self._memory = memory
        self._tiers = tiers
        self._transfer = transfer
        self._loads: dict[str, _Load] = {}
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="page-loader")

    @property
    def can_pull(self) -> bool:
        return self._transfer is not None

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
        if self._transfer is not None:
            self._transfer.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, load: _Load) -> None:
        try:
            num_pages = self._read_tiers(load)
            if num_pages < len(load.load.page_ids):
                load.failure = self._pull(load, num_pages)
        except Exception:
            logger.exception("pages could not be loaded, they are computed instead")
            load.failure = "fault"
        finally:
            load.ended = True
            self.on_end()

    def _read_tiers(self, load: _Load) -> int:
        """How many leading pages came from there."""
        pages = list(zip(load.load.page_keys, load.load.page_ids, strict=True))
        for number, (key, page_id) in enumerate(pages):
            write, started = partial(load.write, self._memory, page_id), time.monotonic()
            tier = self._tiers.read(key, write) if self._tiers is not None else None
            if tier is None:
                return number
            load.came(tier)
            load.took(tier, time.monotonic() - started)
        return len(pages)

    def _pull(self, load: _Load, first: int) -> str | None:
        """The pages from `first` on from a peer. Why not all came, None where they did."""
        wanted = load.load
        if self._transfer is None or wanted.source is None:
            return "gone"

        since = time.monotonic()

        def on_page(position: int, blob: memoryview) -> bool:
            nonlocal since
            came = load.write(self._memory, wanted.page_ids[first + position], np.frombuffer(blob, np.uint8))
            if came:
                load.came(PEER)
                now = time.monotonic()
                load.took(PEER, now - since)
                since = now
            return came

        deadline = load.started + wanted.seconds
        keys = wanted.page_keys[first:]
        result = self._transfer.pull(wanted.source, keys, on_page, deadline, lambda: load.stopped)
        load.took(PEER, time.monotonic() - since)
        return wanted.failure(first + result.num_pages, result.end.value)
