"""Pages on their way to the disk, and how fast they may go there."""

from collections import OrderedDict
from collections.abc import Callable

from cache.block_hasher import BlockKey
from cache.tiers.disk_index import PageKeys


class PageQueue:
    """Copies of pages that wait for the writer, first in, first out.

    Buffers are used again and again: a copy into fresh memory takes 30 times as long, because the system makes each of
    its pages at the first touch.
    """

    def __init__(self, page_bytes: int, max_bytes: int):
        self._page_bytes = page_bytes
        self._max_pages = max(1, max_bytes // page_bytes)
        self._waiting: OrderedDict[BlockKey, tuple[PageKeys, bytearray]] = OrderedDict()
        self._spare: list[bytearray] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._waiting

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= self._max_pages

    def put(self, page: PageKeys, blob: memoryview) -> None:
        buffer = self._spare.pop() if self._spare else bytearray(self._page_bytes)
        memoryview(buffer)[:] = blob
        self._waiting[page[-1]] = page, buffer

    def pop(self) -> tuple[PageKeys, bytearray]:
        return self._waiting.popitem(last=False)[1]

    def give_back(self, buffer: bytearray) -> None:
        self._spare.append(buffer)

    def clear(self) -> None:
        self._spare += (buffer for _, buffer in self._waiting.values())
        self._waiting.clear()


class Pace:
    """A token bucket that holds one write: in any t seconds at most one write and `t * bytes_per_second` begin."""

    def __init__(self, bytes_per_second: float, clock: Callable[[], float]):
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._free_at = clock()

    def delay(self) -> float:
        """Seconds until the next write may begin."""
        return max(0.0, self._free_at - self._clock())

    def began(self, num_bytes: int) -> None:
        self._free_at = max(self._free_at, self._clock()) + num_bytes / self._bytes_per_second
