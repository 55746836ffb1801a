"""Takes pages of other replicas into the pool before anybody asks for them: at the start, and from one that ends."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

import numpy as np

from cache.block_hasher import BlockKey
from cache.kv_cache_manager import NO_MATCH
from replica.engine.engine import Engine
from replica.loading.page_loader import Memory
from replica.messages import PageAddress
from replica.transfer.transfer import PullEnd, Transfer

logger = logging.getLogger(__name__)
T = TypeVar("T")

PAGES_AT_ONCE = 64
"""Kept from requests while they come."""
SHARE_OF_FREE = 0.5
"""Of the pages that nobody holds, so many may make room for what comes."""

OnEngine = Callable[[Callable[[Engine], T]], T]


class PageImporter:
    """Pages come a few at a time, beside the engine's steps, and can be hit as soon as each few are there."""

    def __init__(self, on_engine: OnEngine, memory: Memory, transfer: Transfer):
        """on_engine: runs a function between two steps of the engine and returns what it gives."""
        self._on_engine = on_engine
        self._memory = memory
        self._transfer = transfer
        self._numbers = count()
        self._one_at_a_time = threading.Lock()
        self._closed = threading.Event()

    def take(self, source: PageAddress, pages: Sequence[Sequence[BlockKey]], deadline: float) -> int:
        """pages: by the keys of their blocks, the most wanted first. deadline: on `time.monotonic`. How many came."""
        with self._one_at_a_time:
            wanted = self._on_engine(lambda engine: _wanted(engine, pages))
            num_pages, position = 0, 0
            while position < len(wanted) and time.monotonic() < deadline and not self._closed.is_set():
                part = wanted[position : position + PAGES_AT_ONCE]
                num_came, end = self._take_part(source, part, deadline)
                num_pages += num_came
                if num_came < len(part) and end is not PullEnd.MISSING:
                    break
                position += min(len(part), num_came + 1)  # one that is gone by now is passed over
        return num_pages

    def close(self) -> None:
        """What is under way ends soon."""
        self._closed.set()

    def _take_part(
        self, source: PageAddress, part: Sequence[Sequence[BlockKey]], deadline: float
    ) -> tuple[int, PullEnd]:
        name = f"import-{next(self._numbers)}"
        page_ids = self._on_engine(lambda engine: _begin(engine, name, len(part)))
        num_came = 0

        def on_page(position: int, blob: memoryview) -> bool:
            self._memory.write(page_ids[position], np.frombuffer(blob, np.uint8))
            return not self._closed.is_set()

        try:
            keys = [page[-1] for page in part[: len(page_ids)]]
            if not keys:
                return 0, PullEnd.DECLINED
            result = self._transfer.pull(source, keys, on_page, deadline, self._closed.is_set)
            num_came = result.num_pages
            return num_came, result.end
        finally:
            self._on_engine(lambda engine: _end(engine, name, len(page_ids), part[:num_came]))


def _wanted(engine: Engine, pages: Sequence[Sequence[BlockKey]]) -> list[Sequence[BlockKey]]:
    manager = engine.manager
    missing = [
        page for page in pages if len(page) == manager.blocks_per_page and manager.pool.index.find(page[-1]) is None
    ]
    return missing[: int(manager.pool.num_free * SHARE_OF_FREE)]


def _begin(engine: Engine, name: str, num_pages: int) -> list[int]:
    """Pages to write to; none where the pool has not so many."""
    manager = engine.manager
    if not manager.admit(name, NO_MATCH, num_pages * manager.page_size):
        return []
    engine.num_importing_pages += num_pages
    return list(manager.block_table(name))


def _end(engine: Engine, name: str, num_pages: int, came: Sequence[Sequence[BlockKey]]) -> None:
    """What came can be hit; nothing where a reset came meanwhile."""
    manager = engine.manager
    if num_pages:
        manager.commit(name, [key for page in came for key in page], len(came) * manager.page_size)
        engine.counters.num_imported_pages += len(came)
    manager.release(name)
    engine.num_importing_pages -= num_pages
    engine.publish_events()
