"""What becomes of a page that the pool evicts, and which pages can be loaded back."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from cache.block_hasher import BlockKey
from cache.events import Tier
from cache.tiers.host import Blob, HostPage, HostTier
from cache.tiers.write_through import WriteThrough

CLOSE_SECONDS = 3.0
"""What is still to be read for the disk may take so long when the replica ends, and so long again what waits for it."""
NUM_REMEMBERED = 65_536
"""Pages that left for good: one that comes again is worth a place on the disk."""


class Disk(Protocol):
    """What is asked of `DiskTier`; `find` and `read_into` by any thread."""

    @property
    def max_bytes(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    def offer(self, block_keys: Sequence[BlockKey], blob: memoryview) -> bool: ...

    def is_busy(self) -> bool: ...

    def find(self, key: BlockKey) -> bool: ...

    def read_into(self, key: BlockKey, target: memoryview) -> bool: ...

    def clear(self) -> None: ...

    def close(self, seconds: float) -> None: ...

    def block_keys(self) -> Iterable[BlockKey]: ...


class ColderTiers:
    """The host's memory for all that the pool evicts, the disk for what was used again: at once (`write_through`), or
    when it leaves for the second time. The engine's thread calls all but
    `read` and `disk_changed`, which any thread may.

    A block counts as held while any tier holds its page: what has come, gone or moved is told by `take_changed`.
    """

    def __init__(self, host: HostTier | None, disk: Disk | None, page_bytes: int, bytes_of: Callable[[int], Blob]):
        """bytes_of: a page of the pool, by its id."""
        self._page_bytes = page_bytes
        self._of_thread = threading.local()
        self.host = host
        self.disk = disk
        self.write_through: WriteThrough | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Told by the disk's thread that `take_changed` has something."""
        self._bytes_of = bytes_of
        self._in_host: set[BlockKey] = set()
        self._on_disk: set[BlockKey] = set()
        self._changed: dict[BlockKey, None] = {}
        self._changes: deque[tuple[Sequence[BlockKey], Sequence[BlockKey]]] = deque()
        self._left_before: OrderedDict[BlockKey, None] = OrderedDict()
        if disk is not None:
            self._on_disk.update(disk.block_keys())

    @property
    def num_room_pages(self) -> int:
        """That may come without making others leave."""
        tiers = [tier for tier in (self.host, self.disk) if tier is not None]
        return sum(max(0, tier.max_bytes - tier.num_bytes) // self._page_bytes for tier in tiers)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._in_host or key in self._on_disk

    def block_keys(self) -> set[BlockKey]:
        return self._in_host | self._on_disk

    def tier_of(self, key: BlockKey) -> Tier | None:
        """The warmest one that holds this block."""
        return "host" if key in self._in_host else "disk" if key in self._on_disk else None

    def write_used(self, read: Callable[[BlockKey, memoryview], bool]) -> None:
        """From here on pages that are used again go to the disk. read: see `WriteThrough`."""
        if self.disk is not None:
            self.write_through = WriteThrough(self.disk, read, self._page_bytes)

    def used(self, pages: Iterable[Sequence[BlockKey]]) -> None:
        """Pages of the pool, each by the keys of its blocks, begin a prompt once more."""
        if self.write_through is not None:
            self.write_through.used(pages)

    def offer(self, page_id: int, block_keys: Sequence[BlockKey]) -> None:
        """The pool gives this page, whose bytes are still there, to somebody else."""
        if self.host is not None:
            if self.host.put(block_keys, self._bytes_of(page_id), self._leave_host):
                self._in_host.update(block_keys)
                self._changed.update(dict.fromkeys(block_keys))
        elif self.disk is not None:
            self._offer_to_disk(block_keys, self._bytes_of(page_id), num_uses=0)

    def find(self, key: BlockKey) -> str | None:
        """The tier that holds the page whose last block this is."""
        if self.host is not None and key in self.host:
            return self.host.name
        if self.disk is not None and self.disk.find(key):
            return "disk"
        return None

    def read(self, key: BlockKey, take: Callable[[Blob], bool]) -> str | None:
        """Shows the page's bytes to `take`, which copies them and says whether it did. Returns the tier they came from;
        None where no tier has it (any more)."""
        if self.host is not None and (block_keys := self.host.read(key, take)):
            self.used([block_keys])
            return self.host.name
        if self.disk is not None:
            staging = self._staging()
            if self.disk.read_into(key, staging.data) and take(staging):
                return "disk"
        return None

    def _staging(self) -> Blob:
        """Of this thread: only a page that is whole and right may be copied on."""
        found: Blob | None = getattr(self._of_thread, "staging", None)
        if found is None:
            found = self._of_thread.staging = np.empty(self._page_bytes, np.uint8)
        return found

    def clear(self) -> None:
        """A cache reset: nothing that is here now will ever be found again."""
        if self.host is not None:
            self.host.clear()
        if self.write_through is not None:
            self.write_through.clear()  # behind the host, whose readers name pages for it, and before the disk
        if self.disk is not None:
            self.disk.clear()
        self._changes.clear()
        self._in_host.clear()
        self._on_disk.clear()
        self._changed.clear()
        self._left_before.clear()

    def disk_changed(self, stored: Sequence[BlockKey], removed: Sequence[BlockKey]) -> None:
        """By the disk's own thread."""
        self._changes.append((stored, removed))
        self.on_change()

    def close(self) -> None:
        if self.write_through is not None:
            self.write_through.close(CLOSE_SECONDS)
        if self.disk is not None:
            self.disk.close(CLOSE_SECONDS)

    def take_changed(self) -> list[BlockKey]:
        """Blocks that came to a tier or left one since the last call, in order."""
        while self._changes:
            stored, removed = self._changes.popleft()
            self._on_disk.update(stored)
            self._on_disk.difference_update(removed)
            self._changed.update(dict.fromkeys((*stored, *removed)))
        changed, self._changed = list(self._changed), {}
        return changed

    def _leave_host(self, page: HostPage, blob: Blob) -> None:
        if self.disk is not None:
            self._offer_to_disk(page.block_keys, blob, page.num_uses)
        self._in_host.difference_update(page.block_keys)
        self._changed.update(dict.fromkeys(page.block_keys))

    def _offer_to_disk(self, block_keys: Sequence[BlockKey], blob: Blob, num_uses: int) -> None:
        """Only what was used again: most pages are never asked for a second time, and a disk wears out by writing."""
        key = block_keys[-1]
        if not num_uses and key not in self._left_before:
            self._left_before[key] = None
            if len(self._left_before) > NUM_REMEMBERED:
                self._left_before.popitem(last=False)
            return
        self._left_before.pop(key, None)
        if self.disk is not None:
            self.disk.offer(block_keys, blob.data)
