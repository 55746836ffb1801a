"""Pages that were used again go to the disk at once, while they still lie in the pool or in the host's memory."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from cache.block_hasher import BlockKey

logger = logging.getLogger(__name__)

MAX_WAITING = 65_536
"""Pages by their keys alone; of more the oldest are left out until they are used once more."""
RETRY_SECONDS = 0.05
"""While the disk has as many on their way as it takes at once."""


class PageWriter(Protocol):
    """See `DiskTier`."""

    def offer(self, block_keys: Sequence[BlockKey], blob: memoryview) -> bool: ...

    def find(self, key: BlockKey) -> bool: ...

    def is_busy(self) -> bool: ...


class WriteThrough:
    """Waiting for eviction would leave out what is used most: a prompt's beginning never leaves the pool, and without
    it a restarted replica finds nothing of what follows. So also a killed replica leaves its warm pages behind.

    The engine's thread names pages, a thread of this reads and offers them, in the order in which they were named.
    """

    def __init__(self, disk: PageWriter, read: Callable[[BlockKey, memoryview], bool], page_bytes: int):
        """read: copies the page whose last block this is, from wherever it lies; False where it is gone."""
        self._disk = disk
        self._read = read
        self._buffer = memoryview(bytearray(page_bytes))
        self._waiting: OrderedDict[BlockKey, tuple[BlockKey, ...]] = OrderedDict()
        self._generation = 0
        self._closing = False
        self._stirred = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="write-through", daemon=True)
        self._thread.start()

    def used(self, pages: Iterable[Sequence[BlockKey]]) -> None:
        """Each page by the keys of its blocks. Any thread; costs a look-up for a page that is on disk."""
        new = [tuple(page) for page in pages if not self._disk.find(page[-1])]
        if not new:
            return
        with self._stirred:
            for page in new:
                self._waiting.setdefault(page[-1], page)
            while len(self._waiting) > MAX_WAITING:
                self._waiting.popitem(last=False)
            self._stirred.notify()

    def clear(self) -> None:
        """What was named before will not be offered any more."""
        with self._stirred:
            self._generation += 1
            self._waiting.clear()
            self._stirred.notify()

    def close(self, seconds: float = 0.0) -> None:
        """Goes on with what waits for so many seconds at most."""
        with self._stirred:
            self._closing = True
            self._stirred.notify()
        self._thread.join(seconds)
        self.clear()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._stirred:
                self._stirred.wait_for(lambda: self._closing or self._waiting)
                while self._waiting and self._disk.is_busy():
                    self._stirred.wait(RETRY_SECONDS)
                if not self._waiting:
                    if self._closing:
                        return
                    continue  # cleared meanwhile
                key, page = self._waiting.popitem(last=False)
                generation = self._generation
            try:
                found = self._read(key, self._buffer)
            except Exception:
                logger.exception("a page could not be read for the disk")
                continue
            with self._stirred:
                if found and generation == self._generation:
                    self._disk.offer(page, self._buffer)
