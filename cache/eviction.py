"""In which order free pages are handed out: what `BlockPool` keeps them in."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from cache.block_hasher import BlockKey

EVICTIONS = ("lru", "adaptive")
PAGES_PER_RETURN = 2.0
"""By so many pages of the pool, at least, a key that comes back moves the share that is spared."""


class FreePages(Protocol):
    """The part of an OrderedDict that the pool uses, so that for `lru` it is one: nothing stands between.

    `free[page_id] = None` puts a page that was let go behind all others; a table's pages come tail first.
    """

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...
    def __setitem__(self, page_id: int, value: None, /) -> None: ...
    def __delitem__(self, page_id: int, /) -> None: ...
    def popitem(self, last: bool = True) -> tuple[int, None]: ...
    def move_to_end(self, key: int, last: bool = True) -> None: ...


class AdaptiveOrder:
    """LRU that spares pages which were used again, as many of them as has paid so far.

    Two lists in the order of release, as in segmented LRU: pages used `_once` and `_again` since they were filled. The
    oldest page of all goes next; unless it is one of `_again` and those are at most `_share` of the free pages: then
    the oldest of `_once` goes. The share starts at 0, which is LRU, and is moved by keys that come back after they were
    evicted, as in ARC (Megiddo and Modha, FAST 2003): up for one that had been used again, down for one that had not,
    by more where such keys are the fewer.

    Children go before parents: who uses a page uses the one in front of it too, and lets it go later; so the front one
    is never in `_once` while the other is in `_again`, and is never the older of the two. O(1) per page; remembers
    at most 2 * num_pages evicted keys. The clock is a count of releases.
    """

    _EMPTY = -1  # released at, of a page that nothing can hit: before all others

    def __init__(self, num_pages: int, keys_of: Callable[[int], Sequence[BlockKey]], uses: Sequence[int]):
        """keys_of: of a page's blocks. uses: by page, how many prompts began with it since it was filled."""
        self._num_pages, self._keys_of, self._uses = num_pages, keys_of, uses
        self._once = OrderedDict.fromkeys(range(num_pages), self._EMPTY)  # page: released at
        self._again: OrderedDict[int, int] = OrderedDict()
        self._evicted: tuple[OrderedDict[BlockKey, None], ...] = (OrderedDict(), OrderedDict())
        self._came_back: set[int] = set()
        self._share, self._now = 0.0, 0

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    def __iter__(self) -> Iterator[int]:
        yield from self._once
        yield from self._again

    def __setitem__(self, page_id: int, value: None, /) -> None:
        self._now += 1
        keys = self._keys_of(page_id)
        if keys:
            self._learn(page_id, keys[-1])
        again = self._uses[page_id] or page_id in self._came_back
        (self._again if again and keys else self._once)[page_id] = self._now

    def __delitem__(self, page_id: int, /) -> None:
        del (self._again if page_id in self._again else self._once)[page_id]

    def move_to_end(self, key: int, last: bool = True) -> None:
        """Only for pages that nothing can hit, to the head."""
        if last:
            raise ValueError(f"page {key} is behind all others already")
        self._once[key] = self._EMPTY
        self._once.move_to_end(key, last=False)

    def popitem(self, last: bool = True) -> tuple[int, None]:
        """Raises KeyError when none is free."""
        if last:
            raise ValueError("only the page that is worth least is handed out")
        again = self._takes_again()
        page_id, _ = (self._again if again else self._once).popitem(last=False)
        self._came_back.discard(page_id)
        if keys := self._keys_of(page_id):
            evicted = self._evicted[again]
            evicted[keys[-1]] = None
            evicted.move_to_end(keys[-1])
            if len(evicted) > self._num_pages:
                evicted.popitem(last=False)
        return page_id, None

    def _takes_again(self) -> bool:
        if not self._again or not self._once:
            return not self._once
        (oldest_again, released_again), (_, released_once) = (
            next(iter(self._again.items())), next(iter(self._once.items())),
        )  # fmt: skip
        if not self._keys_of(oldest_again):  # since a reset
            return released_once != self._EMPTY
        return released_again < released_once and len(self._again) > self._share * len(self)

    def _learn(self, page_id: int, key: BlockKey) -> None:
        for again, evicted in enumerate(self._evicted):
            if key in evicted:
                other = self._evicted[1 - again]
                step = PAGES_PER_RETURN * max(1.0, len(other) / len(evicted)) / self._num_pages
                self._share = min(1.0, max(0.0, self._share + (step if again else -step)))
                del evicted[key]
                if again:
                    self._came_back.add(page_id)
