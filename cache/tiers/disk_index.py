"""Which pages of which blocks a disk holds, least recently used first."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from cache.block_hasher import BlockKey

PageKeys = tuple[BlockKey, ...]


class PageIndex:
    """Pages by the key of their last block. A block may lie in two pages (one that was taken while it was not full, and
    the same one full), so each change says which blocks are new here, or are here no longer."""

    def __init__(self) -> None:
        self._pages: OrderedDict[BlockKey, PageKeys] = OrderedDict()
        self._num_pages_of: dict[BlockKey, int] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._pages

    def get(self, key: BlockKey) -> PageKeys | None:
        return self._pages.get(key)

    def block_keys(self) -> list[BlockKey]:
        return list(self._num_pages_of)

    def add(self, page: PageKeys, coldest: bool = False) -> list[BlockKey]:
        """A page that is not here yet, as the most recently used one, or as the first to go. Returns new blocks."""
        self._pages[page[-1]] = page
        self._pages.move_to_end(page[-1], last=not coldest)
        new = []
        for key in page:
            num_pages = self._num_pages_of.get(key, 0)
            if num_pages == 0:
                new.append(key)
            self._num_pages_of[key] = num_pages + 1
        return new

    def touch(self, key: BlockKey) -> None:
        self._pages.move_to_end(key)

    def drop(self, key: BlockKey) -> list[BlockKey]:
        """Returns the blocks that no page holds any more."""
        return list(self._gone(self._pages.pop(key)))

    def drop_coldest(self) -> tuple[BlockKey, list[BlockKey]]:
        """Its key, and the blocks that no page holds any more. Raises KeyError where there is no page."""
        key, page = self._pages.popitem(last=False)
        return key, list(self._gone(page))

    def clear(self) -> Sequence[BlockKey]:
        """Returns all blocks that were here."""
        blocks = self.block_keys()
        self._pages.clear()
        self._num_pages_of.clear()
        return blocks

    def _gone(self, page: PageKeys) -> Iterable[BlockKey]:
        for key in page:
            self._num_pages_of[key] -= 1
            if self._num_pages_of[key] == 0:
                del self._num_pages_of[key]
                yield key
