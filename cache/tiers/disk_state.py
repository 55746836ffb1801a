"""What a disk tier has in memory: shared by the threads that offer and read and the one that writes."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cache.block_hasher import KEY_BYTES, BlockKey
from cache.tiers.disk_folder import OWN_BYTES, DiskFolder, bytes_on_disk
from cache.tiers.disk_format import HEADER_BYTES, MAX_BLOCKS, FaultCause, PageFormat
from cache.tiers.disk_index import PageIndex, PageKeys
from cache.tiers.disk_queue import Pace, PageQueue

MAX_QUEUED_BYTES = 64 * 2**20

RefusalCause = Literal["present", "rate", "queue", "full", "failed", "malformed", "closed"]


def smallest_disk_bytes(page_bytes: int) -> int:
    """The least that a disk tier can do with: one page and what it needs itself."""
    return OWN_BYTES + bytes_on_disk(HEADER_BYTES + page_bytes)


@dataclass(slots=True)
class DiskCounts:
    """Since the start. removed: pages that can be found no longer, or were not taken over, for whatever reason.

    refused: offers by cause: present (on disk or under way), rate and queue (too many at once for the given rate, or
    for the disk), full, failed (the disk, a moment ago), malformed, closed. failures: see `PageFault`.
    """

    written_pages: int = 0
    written_bytes: int = 0
    read_pages: int = 0
    read_bytes: int = 0
    removed_pages: int = 0
    removed_bytes: int = 0
    refused: Counter[RefusalCause] = field(default_factory=Counter)
    failures: Counter[FaultCause] = field(default_factory=Counter)


class DiskState:
    """Guarded by `lock`, which nobody holds while the disk works. Methods are called with the lock held."""

    def __init__(self, page_format: PageFormat, max_bytes: int, pace: Pace, clock: Callable[[], float]):
        self.lock = threading.Lock()
        self.stirred = threading.Condition(self.lock)
        self.placing = threading.Lock()  # keeps `clear` and a page's last step apart; taken before `lock`
        self.format, self.max_bytes, self.pace, self.clock = page_format, max_bytes, pace, clock
        self.page_on_disk = bytes_on_disk(page_format.file_bytes)
        self.smallest_bytes = smallest_disk_bytes(page_format.page_bytes)
        self.index = PageIndex()
        self.queue = PageQueue(page_format.page_bytes, MAX_QUEUED_BYTES)
        self.counts = DiskCounts()
        self.changes: list[tuple[Sequence[BlockKey], Sequence[BlockKey]]] = []  # stored and removed, not yet told
        self.doomed: list[BlockKey] = []  # files that are no pages, for the writer to remove
        self.folder: DiskFolder | None = None
        self.writing: BlockKey | None = None
        self.generation = 0  # one more with each clear
        self.has_files = False  # in the folder of pages; guarded by `placing`
        self.must_set_aside = self.must_remove_set_aside = False  # what of a clear is still to be done
        self.has_work = self.closing = self.is_loaded = False
        self.used_bytes = OWN_BYTES  # only the writer changes it
        self.retry_at = self.full_until = float("-inf")  # after the disk failed, or was full at `room` bytes of ours
        self.room = max_bytes
        self._last_stamp = 0

    def stir(self) -> None:
        self.has_work = True
        self.stirred.notify()

    def stamp(self, at_least: int = 0) -> int:
        """Time of use in ns for a file, later than all before, so that a restart finds the order again."""
        self._last_stamp = max(self._last_stamp + 1, time.time_ns(), at_least)
        return self._last_stamp

    def refusal(self, page: PageKeys, blob: memoryview | None) -> RefusalCause | None:
        """Why an offer is not taken; None where it is."""
        if self.closing:
            return "closed"
        if blob is None or len(blob) != self.format.page_bytes:
            return "malformed"
        if not 1 <= len(page) <= MAX_BLOCKS or any(len(key) != KEY_BYTES for key in page):
            return "malformed"
        if page[-1] in self.index:
            self.index.touch(page[-1])  # the device used it until now, so it is worth as much as one just written
            return "present"
        if page[-1] in self.queue or page[-1] == self.writing:
            return "present"
        if self.clock() < self.retry_at:
            return "failed"
        if self.limit_bytes() < self.smallest_bytes:
            return "full"
        if self.queue.is_full:
            return "rate" if self.pace.delay() > 0 else "queue"
        return None

    def limit_bytes(self) -> int:
        """What may be used now: less than `max_bytes` where the disk was full a moment ago."""
        return self.room if self.clock() < self.full_until else self.max_bytes

    def forget(self, key: BlockKey) -> None:
        self.changes.append(((), self.index.drop(key)))
        self.count_removed(1)

    def forget_all(self) -> None:
        self.count_removed(len(self.index))
        self.doomed.clear()
        self.changes.append(((), self.index.clear()))

    def count_removed(self, num_pages: int) -> None:
        self.counts.removed_pages += num_pages
        self.counts.removed_bytes += num_pages * self.format.page_bytes
