"""Pages in the replica's own memory, outside the engine's pool."""

import mmap
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cache.block_hasher import BlockKey
from cache.tiers.memory_ahead import MemoryAhead, populate_of

Blob = NDArray[np.uint8]
"""[page_bytes]: all that one page holds."""


@dataclass(slots=True)
class HostPage:
    """slot: where it lies. num_readers: who copies it out just now. num_uses: how often it was copied out or offered
    again: what was never used again is not worth a place on the disk."""

    block_keys: tuple[BlockKey, ...]
    slot: int
    num_readers: int = 0
    num_uses: int = 0


class HostTier:
    """Whole pages by the key of their last block, least recently used first out; a page that is being copied out stays.

    One thread puts pages in and clears, any thread reads. The memory is taken at once as addresses, and from the system
    a little before pages come (`MemoryAhead`). Pages of one prompt are put in from its end (`BlockPool.let_go`), so
    children leave before their parents.
    """

    name = "host"

    def __init__(self, max_bytes: int, page_bytes: int):
        """Raises ValueError where not one page fits."""
        if max_bytes < page_bytes:
            raise ValueError(f"host_kv_memory must hold a page of {page_bytes} bytes, got {max_bytes}")
        num_slots = max_bytes // page_bytes
        memory = mmap.mmap(-1, num_slots * page_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._slots = np.frombuffer(memory, np.uint8).reshape(num_slots, page_bytes)
        self._ahead = MemoryAhead(num_slots * page_bytes, populate_of(memory))
        self._free = list(range(num_slots - 1, -1, -1))
        self._pages: OrderedDict[BlockKey, HostPage] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def max_bytes(self) -> int:
        return self._slots.nbytes

    @property
    def num_bytes(self) -> int:
        return len(self._pages) * self._slots.shape[1]

    @property
    def num_pages(self) -> int:
        return len(self._pages)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._pages

    def put(
        self, block_keys: Sequence[BlockKey], blob: Blob, leaving: Callable[[HostPage, Blob], None] = lambda *_: None
    ) -> bool:
        """Copies a page in; False where all others are being read. leaving: is shown each page that goes for it, while
        its bytes still lie there."""
        key = block_keys[-1]
        with self._lock:
            if key in self._pages:
                self._pages.move_to_end(key)
                self._pages[key].num_uses += 1
                return True
            going = None if self._free else self._oldest()
            if going is not None:
                del self._pages[going.block_keys[-1]]
        if going is not None:
            leaving(going, self._slots[going.slot])
            self._free.append(going.slot)
        if not self._free:
            return False
        slot = self._free.pop()
        self._ahead.used((slot + 1) * len(blob))
        np.copyto(self._slots[slot], blob)
        with self._lock:
            self._pages[key] = HostPage(tuple(block_keys), slot)
        return True

    def read(self, key: BlockKey, take: Callable[[Blob], bool]) -> tuple[BlockKey, ...]:
        """Shows the page to `take`, which copies it and says whether it did. Returns the keys of its blocks; none where
        it did not, or the page is not here."""
        with self._lock:
            page = self._pages.get(key)
            if page is None:
                return ()
            self._pages.move_to_end(key)
            page.num_readers += 1
            page.num_uses += 1
        try:
            return page.block_keys if take(self._slots[page.slot]) else ()
        finally:
            with self._lock:
                page.num_readers -= 1
                if not page.num_readers and self._pages.get(key) is not page:  # cleared meanwhile
                    self._free.append(page.slot)

    def clear(self) -> list[HostPage]:
        """Forgets all pages, and returns them."""
        with self._lock:
            gone = list(self._pages.values())
            self._pages.clear()
            self._free += [page.slot for page in gone if not page.num_readers]
        return gone

    def block_keys(self) -> set[BlockKey]:
        with self._lock:
            return {key for page in self._pages.values() for key in page.block_keys}

    def check_invariants(self) -> None:
        """Raises RuntimeError where slots are lost, or used twice. Only while nobody reads."""
        used = [page.slot for page in self._pages.values()]
        if sorted(used + self._free) != list(range(len(self._slots))):
            raise RuntimeError(f"slots of the host tier: {len(used)} used, {len(self._free)} free")

    def _oldest(self) -> HostPage | None:
        return next((page for page in self._pages.values() if not page.num_readers), None)
