"""Block tables of running requests over one pool of pages, with prefix caching."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from cache.block_contents import BlockContents
from cache.block_hasher import BlockKey
from cache.block_pool import BlockPool
from cache.events import EventBuffer, KVEvent
from cache.prefix_index import PrefixIndex
from cache.tiers.colder_tiers import ColderTiers


@dataclass(frozen=True, slots=True)
class PageCopy:
    """The first `num_tokens` slots of page `source` are to be copied to page `target` before the step's forward."""

    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest reusable beginning of a prompt.

    num_tokens: how many leading tokens need no computing. page_ids: whole pages shared by reference.
    partial_page: page that holds the rest of the match where a page is larger than a hash block; it is copied.
    """

    num_tokens: int = 0
    page_ids: tuple[int, ...] = ()
    partial_page: int | None = None

    def whole_pages(self, page_size: int) -> "PrefixMatch":
        """Without the page that would be copied."""
        return PrefixMatch(len(self.page_ids) * page_size, self.page_ids)


NO_MATCH = PrefixMatch()


@dataclass(frozen=True, slots=True)
class PrefixOverlap:
    """How a prompt compares with what is cached. num_reusable_tokens: leading tokens in whole blocks that an engine
    takes from the cache. num_equal_tokens: leading tokens that lie in the cache at all, the same ones included; what
    goes beyond fills no block, or is the prompt's last token, and is computed."""

    num_reusable_tokens: int = 0
    num_equal_tokens: int = 0


@dataclass(slots=True)
class _Table:
    page_ids: list[int] = field(default_factory=list)
    num_registered_blocks: int = 0


class KVCacheManager:
    """match -> admit -> (grow, commit)* -> release.

    Deterministic, no I/O, no clock. A block becomes findable only by `commit`, which the engine calls after the forward
    pass that wrote it has ended (5, A21): a failed or aborted step leaves nothing behind that was not computed.
    """

    def __init__(
        self,
        num_pages: int,
        block_size: int,
        blocks_per_page: int = 1,
        prefix_caching: bool = True,
        keep_token_ids: bool = False,
        eviction: str = "lru",
    ):
        """num_pages: size of the pool. block_size: tokens of a hash block. A page holds `blocks_per_page` of them.

        keep_token_ids: those of cached blocks, for `overlap`. eviction: see `BlockPool`.
        """
        if block_size < 1 or blocks_per_page < 1:
            raise ValueError(f"block_size and blocks_per_page must be at least 1, got {block_size}, {blocks_per_page}")
        self.block_size = block_size
        self.blocks_per_page = blocks_per_page
        self.page_size = block_size * blocks_per_page
        self.prefix_caching = prefix_caching
        self.pool = BlockPool(num_pages, PrefixIndex(), eviction)
        self._contents = BlockContents() if keep_token_ids else None
        self._tables: dict[str, _Table] = {}
        self.tiers: ColderTiers | None = None
        self._events = EventBuffer()
        self._moved: list[BlockKey] = []  # out of the pool since the last events, where there are tiers
        self._copies: list[PageCopy] = []

    def attach(self, tiers: ColderTiers) -> None:
        """Evicted pages are offered to these from here on, and what they hold already counts as held."""
        self.tiers = tiers
        self._tell_tiers(sorted(tiers.block_keys()))

    @property
    def num_blocks(self) -> int:
        """Size of the pool in hash blocks, the unit that is told to routers and people whatever a page holds."""
        return self.pool.num_pages * self.blocks_per_page

    @property
    def num_free_blocks(self) -> int:
        """Blocks of pages that can be handed out: empty ones and cached ones that nobody holds."""
        return self.pool.num_free * self.blocks_per_page

    @property
    def num_room_blocks(self) -> int:
        """That may come without making others leave: into empty pages, or with what must leave into colder tiers."""
        num_pages = self.pool.num_free - self.pool.num_cached
        return (num_pages + (self.tiers.num_room_pages if self.tiers is not None else 0)) * self.blocks_per_page

    @property
    def num_cached_blocks(self) -> int:
        """Blocks of pages that nobody holds but that can be hit."""
        return self.pool.num_cached * self.blocks_per_page

    def num_pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def match(self, keys: Sequence[BlockKey], num_tokens: int) -> PrefixMatch:
        """Longest prefix in the pool in whole hash blocks, at most `num_tokens - 1`: the last token is always computed,
        because its logits are needed (A1, 2)."""
        if not self.prefix_caching:
            return NO_MATCH
        index, per_page = self.pool.index, self.blocks_per_page
        limit = min(len(keys), (num_tokens - 1) // self.block_size)
        page_ids: list[int] = []
        first = 0
        # A page whose last key is found holds the whole chain up to it, because keys are chained and pages are
        # written by one request from their first slot on.
        while first + per_page <= limit and (page_id := index.find(keys[first + per_page - 1])) is not None:
            page_ids.append(page_id)
            first += per_page
        for last in range(min(first + per_page - 1, limit) - 1, first - 1, -1):
            partial = index.find(keys[last])
            if partial is not None:
                return PrefixMatch((last + 1) * self.block_size, tuple(page_ids), partial)
        return PrefixMatch(first * self.block_size, tuple(page_ids))

    def num_loadable_pages(self, keys: Sequence[BlockKey], match: PrefixMatch, num_tokens: int) -> int:
        """How many whole pages behind the match's whole pages lie in colder tiers, one after another."""
        tiers = self.tiers
        if tiers is None or not self.prefix_caching:
            return 0
        first, per_page = len(match.page_ids) * self.blocks_per_page, self.blocks_per_page
        limit = min(len(keys), (num_tokens - 1) // self.block_size) // per_page * per_page
        last_keys = islice(keys, first + per_page - 1, limit, per_page)
        return sum(1 for _ in takewhile(tiers.find, last_keys))

    def num_reusable_tokens(self, keys: Sequence[BlockKey], num_tokens: int) -> int:
        """Leading tokens that need no computing: of the pool, and of colder tiers behind that."""
        match = self.match(keys, num_tokens)
        num_pages = len(match.page_ids) + self.num_loadable_pages(keys, match, num_tokens)
        return max(match.num_tokens, num_pages * self.page_size)

    def overlap(self, keys: Sequence[BlockKey], token_ids: Sequence[int], root: BlockKey) -> PrefixOverlap:
        """What a match of this prompt gives, and how many tokens more are equal to cached ones; changes nothing.

        root: `BlockHasher.root` of the prompt's name space. Without `keep_token_ids` nothing more is known.
        """
        reusable = self.num_reusable_tokens(keys, len(token_ids))
        if self._contents is None:
            return PrefixOverlap(reusable, reusable)
        parent = keys[reusable // self.block_size - 1] if reusable else root
        following = token_ids[reusable : reusable + self.block_size]
        return PrefixOverlap(reusable, reusable + self._contents.num_equal(parent, following))

    def root_of(self, key: BlockKey, known: dict[BlockKey, BlockKey]) -> BlockKey:
        """See `BlockContents.root_of`; the key itself where no token ids are kept."""
        return key if self._contents is None else self._contents.root_of(key, known)

    def num_new_pages(self, match: PrefixMatch, num_tokens: int) -> int:
        """How many pages `admit` would take out of the free list, hits that nobody holds included."""
        return self.num_pages_for(num_tokens) - len(match.page_ids) + self.pool.num_unheld(match.page_ids)

    def admit(self, request_id: str, match: PrefixMatch, num_tokens: int) -> bool:
        """Gives the request a block table for `num_tokens` tokens that begins with the match.

        Returns False and changes nothing where the pool cannot give that. Raises ValueError for a known request.
        """
        if request_id in self._tables:
            raise ValueError(f"request {request_id} has a block table already")
        if self.num_new_pages(match, num_tokens) > self.pool.num_free:
            return False
        self.pool.hold(match.page_ids)  # before taking any page, or a hit could be handed out as a fresh one
        # A page lists its keys from its start, so the blocks of a copied page are registered with the copy once more.
        table = _Table(list(match.page_ids), len(match.page_ids) * self.blocks_per_page)
        self._tables[request_id] = table
        if self.tiers is not None:
            self.tiers.used(self.pool.index.keys_of(page_id) for page_id in match.page_ids)
        self._extend(table, num_tokens)
        if match.partial_page is not None:
            position = len(match.page_ids)
            num_copied = match.num_tokens - position * self.page_size
            self._copies.append(PageCopy(match.partial_page, table.page_ids[position], num_copied))
        return True

    def grow(self, request_id: str, num_tokens: int) -> bool:
        """Extends the block table to `num_tokens` tokens; False and no change where the pool is empty."""
        table = self._tables[request_id]
        if self.num_pages_for(num_tokens) - len(table.page_ids) > self.pool.num_free:
            return False
        self._extend(table, num_tokens)
        return True

    def _extend(self, table: _Table, num_tokens: int) -> None:
        missing = self.num_pages_for(num_tokens) - len(table.page_ids)
        if missing > 0:
            taken, evicted = self.pool.take(missing)
            table.page_ids += taken
            for page in evicted:
                if self.tiers is not None and len(page.block_keys) == self.blocks_per_page == len(page.gone):
                    self.tiers.offer(page.page_id, page.block_keys)
                self._left_pool(page.gone)
                if self._contents is not None:
                    self._contents.forget(page.gone)

    def _left_pool(self, keys: Sequence[BlockKey]) -> None:
        """No page of the pool holds these any more."""
        if self.tiers is None:
            self._events.removed(keys)
        else:
            self._moved += keys

    def _tell_tiers(self, keys: Iterable[BlockKey]) -> None:
        """Where these lie now, of which the pool holds none."""
        if self.tiers is not None:
            for key in keys:
                if (tier := self.tiers.tier_of(key)) is None:
                    self._events.removed((key,))
                else:
                    self._events.stored((key,), tier)

    def commit(
        self,
        request_id: str,
        keys: Sequence[BlockKey],
        num_computed_tokens: int,
        token_ids: Sequence[int] = (),
        root: BlockKey = b"",
    ) -> None:
        """Makes the request's full blocks findable up to `num_computed_tokens`, whose K/V must be written by now.

        token_ids: of the request, and root: of its name space; read only with `keep_token_ids`. Without them nothing is
        known of the tokens, and keys need not be one prompt's: then pages are filled from elsewhere.
        """
        if not self.prefix_caching:
            return
        table = self._tables[request_id]
        stored = []
        for position in range(table.num_registered_blocks, min(len(keys), num_computed_tokens // self.block_size)):
            if self.pool.index.add(keys[position], table.page_ids[position // self.blocks_per_page]):
                stored.append(keys[position])
                if self._contents is not None and token_ids:
                    start = position * self.block_size
                    parent = keys[position - 1] if position else root
                    self._contents.add(keys[position], parent, token_ids[start : start + self.block_size])
            table.num_registered_blocks = position + 1
        self._events.stored(stored)

    def release(self, request_id: str) -> None:
        """The one way out of finish, abort, preemption and error. Unknown requests are ignored (A16, A18)."""
        table = self._tables.pop(request_id, None)
        if table is not None:
            self.pool.let_go(table.page_ids)

    def reset(self, keep_tiers: bool = False) -> None:
        """Forgets all cached content. Running requests keep their pages but do not offer old ones again.

        keep_tiers: what lies in colder tiers stays; for the end of a warm-up, which must not empty a disk.
        """
        self.pool.forget_keys()
        if self.tiers is not None and not keep_tiers:
            self.tiers.clear()
        if self._contents is not None:
            self._contents.clear()
        for table in self._tables.values():
            # Whole pages only: a page lists its keys from its start, so one that began before the reset has none.
            num_pages = len(table.page_ids)
            table.num_registered_blocks = num_pages * self.blocks_per_page
        self._events.cleared()
        self._moved.clear()
        if self.tiers is not None:
            self._tell_tiers(sorted(self.tiers.block_keys()))

    def block_table(self, request_id: str) -> list[int]:
        """Page ids in the order of the request's tokens; the caller must not change the list."""
        return self._tables[request_id].page_ids

    def take_copies(self) -> list[PageCopy]:
        """Page copies planned since the last call; to be done in this order before the step's first write."""
        copies, self._copies = self._copies, []
        return copies

    def take_events(self) -> list[KVEvent]:
        """What has changed for the world since the last call: blocks that the pool or a tier holds."""
        if self.tiers is not None:
            changed, self._moved = dict.fromkeys((*self._moved, *self.tiers.take_changed())), []
            self._tell_tiers(key for key in changed if self.pool.index.find(key) is None)
        return self._events.take()

    def cached_keys(self) -> set[BlockKey]:
        """Blocks that can be hit, in the pool or after loading."""
        return self.pool.index.keys() | (self.tiers.block_keys() if self.tiers is not None else set())

    def check_invariants(self) -> None:
        """Raises RuntimeError where pool, tables and index disagree (A19)."""
        self.pool.check_invariants(table.page_ids for table in self._tables.values())
        if self._contents is not None:
            self._contents.check_invariants()
            if not self._contents.keys() <= self.pool.index.keys():
                raise RuntimeError("token ids are kept of other blocks than those that can be hit")
        for request_id, table in self._tables.items():
            if table.num_registered_blocks > len(table.page_ids) * self.blocks_per_page:
                raise RuntimeError(f"request {request_id} registered more blocks than its table holds")
