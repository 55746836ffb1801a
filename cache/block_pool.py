"""The fixed set of pages: who holds them, and in which order free ones are handed out."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cache.block_hasher import BlockKey
from cache.eviction import EVICTIONS, AdaptiveOrder, FreePages
from cache.prefix_index import PrefixIndex


@dataclass(frozen=True, slots=True)
class EvictedPage:
    """A page that is handed out again while its bytes still lie there. block_keys: of its leading blocks, which could
    be hit. gone: those of them that no other page holds."""

    page_id: int
    block_keys: tuple[BlockKey, ...]
    gone: tuple[BlockKey, ...]


class BlockPool:
    """Pages 0 to num_pages - 1 with reference counts and an eviction order.

    `_generations[page]`: how often it was handed out. `_refs[page]`: how many block tables hold it. `_uses[page]`: how
    many prompts began with it since its content was computed. `_free`: pages that
    nobody holds, next to be handed out first; a page in it may still be hit while it has keys. Handing a page out drops
    its keys in the same call (A2, 4), so that no key ever points at foreign content. All operations are O(1) per page.
    """

    def __init__(self, num_pages: int, index: PrefixIndex, eviction: str = "lru"):
        """eviction: one of EVICTIONS, the order in which pages are handed out. Raises ValueError for another one."""
        if num_pages < 1:
            raise ValueError(f"num_pages must be at least 1, got {num_pages}")
        if eviction not in EVICTIONS:
            raise ValueError(f"eviction must be one of {', '.join(EVICTIONS)}, got {eviction!r}")
        self.num_pages = num_pages
        self.index = index
        self._refs = [0] * num_pages
        self._generations = [0] * num_pages
        self._uses = [0] * num_pages
        self._free: FreePages = (
            OrderedDict.fromkeys(range(num_pages))
            if eviction == "lru"
            else AdaptiveOrder(num_pages, index.keys_of, self._uses)
        )
        self._num_cached_free = 0

    @property
    def num_free(self) -> int:
        """Pages that can be handed out: empty ones and cached ones that nobody holds."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages that nobody holds but that can be hit."""
        return self._num_cached_free

    @property
    def num_active(self) -> int:
        return self.num_pages - len(self._free)

    def generation(self, page_id: int) -> int:
        """Another one means that the page was handed out meanwhile. It is counted before anything is written there: who
        reads a page that can be hit, and finds the same one afterwards, has read what its keys say, in any thread."""
        return self._generations[page_id]

    def hottest(self, max_pages: int, least_uses: int = 1) -> list[tuple[BlockKey, ...]]:
        """Pages that so many prompts began with since they were filled, by the keys of their blocks: the most used
        first, of equals a prompt's beginning before what follows. Any thread."""
        uses = self._uses
        found = [(uses[page_id], keys) for page_id, keys in self.index.pages().items() if uses[page_id] >= least_uses]
        found.sort(key=lambda pair: -pair[0])
        return [keys for _, keys in found[:max_pages]]

    def num_unheld(self, page_ids: Iterable[int]) -> int:
        """How many of the pages a `hold` would take out of the free list."""
        return sum(1 for page_id in page_ids if not self._refs[page_id])

    def hold(self, page_ids: Iterable[int]) -> None:
        """One more holder for each page; a cached page leaves the free list."""
        for page_id in page_ids:
            if not self._refs[page_id]:
                del self._free[page_id]
                self._num_cached_free -= bool(self.index.keys_of(page_id))
            self._refs[page_id] += 1
            self._uses[page_id] += 1

    def take(self, num_pages: int) -> tuple[list[int], list[EvictedPage]]:
        """Hands out pages with one holder each, in the order of eviction. Returns them, and what could be hit in them.

        Raises IndexError when fewer are free; nothing is changed then.
        """
        if num_pages > len(self._free):
            raise IndexError(f"{num_pages} pages wanted, {len(self._free)} free")
        taken, evicted = [], []
        for _ in range(num_pages):
            page_id, _ = self._free.popitem(last=False)
            keys = tuple(self.index.keys_of(page_id))
            if keys:
                self._num_cached_free -= 1
                evicted.append(EvictedPage(page_id, keys, tuple(self.index.drop_page(page_id))))
            self._generations[page_id] += 1
            self._uses[page_id] = 0
            self._refs[page_id] = 1
            taken.append(page_id)
        return taken, evicted

    def let_go(self, page_ids: Sequence[int]) -> None:
        """One holder less for each page of one block table.

        The table's tail is freed first, so that it is also evicted first and the shared beginning lives longest. Pages
        without keys go to the head of the list: using them costs nobody a hit.
        """
        for page_id in reversed(page_ids):
            self._refs[page_id] -= 1
            if self._refs[page_id] == 0:
                self._free[page_id] = None
                if self.index.keys_of(page_id):
                    self._num_cached_free += 1
                else:
                    self._free.move_to_end(page_id, last=False)

    def forget_keys(self) -> None:
        """Empties the prefix index; pages keep their holders."""
        self.index.clear()
        self._num_cached_free = 0

    def check_invariants(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises RuntimeError unless counts, free list and index agree with the given block tables."""
        refs = [0] * self.num_pages
        for table in tables:
            if len(set(table)) != len(table):
                raise RuntimeError(f"a block table holds a page twice: {table}")
            for page_id in table:
                refs[page_id] += 1
        if refs != self._refs:
            wrong = [page for page in range(self.num_pages) if refs[page] != self._refs[page]]
            raise RuntimeError(f"reference counts differ from the block tables on pages {wrong}")
        if set(self._free) != {page for page, count in enumerate(refs) if not count}:
            raise RuntimeError("the free list is not the set of pages without holder")
        cached = sum(1 for page_id in self._free if self.index.keys_of(page_id))
        if cached != self._num_cached_free:
            raise RuntimeError(f"{cached} cached free pages, but {self._num_cached_free} counted")
        self.index.check_invariants()
