"""The manager and its tiers: evicted pages are offered, the world hears of a block once, a reset empties all."""

from collections.abc import Iterable, Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cache.block_hasher import BlockHasher, BlockKey
from cache.events import BlocksRemoved, BlocksStored, CacheCleared, KVEvent
from cache.kv_cache_manager import KVCacheManager
from cache.tiers.colder_tiers import ColderTiers
from cache.tiers.host import HostTier

B = 4
PAGE_BYTES = 16
HASHER = BlockHasher(bytes(16), "weights", B)


def keys(tokens: str) -> list[BlockKey]:
    return HASHER.keys([ord(token) for token in tokens])


class ListedDisk:
    """A disk tier that takes at most `room` pages, and writes when it is told to."""

    def __init__(self, room: int = 8) -> None:
        self.pages: dict[BlockKey, tuple[tuple[BlockKey, ...], bytes]] = {}
        self.queued: list[tuple[tuple[BlockKey, ...], bytes]] = []
        self.room = room
        self.tiers: ColderTiers | None = None

    @property
    def max_bytes(self) -> int:
        return PAGE_BYTES * self.room

    @property
    def num_bytes(self) -> int:
        return PAGE_BYTES * len(self.pages)

    def offer(self, block_keys: Sequence[BlockKey], blob: memoryview) -> bool:
        self.queued.append((tuple(block_keys), bytes(blob)))
        return True

    def write(self) -> None:
        stored: list[BlockKey] = []
        removed: list[BlockKey] = []
        for block_keys, blob in self.queued:
            if block_keys[-1] in self.pages:
                continue
            if len(self.pages) == self.room:
                removed += self.pages.pop(next(iter(self.pages)))[0]
            self.pages[block_keys[-1]] = block_keys, blob
            stored += block_keys
        self.queued.clear()
        assert self.tiers is not None
        # One that came and went again is in both: first it came.
        self.tiers.disk_changed(stored, removed)

    def is_busy(self) -> bool:
        return False

    def find(self, key: BlockKey) -> bool:
        return key in self.pages

    def read_into(self, key: BlockKey, target: memoryview) -> bool:
        if key not in self.pages:
            return False
        target[:] = self.pages[key][1]
        return True

    def clear(self) -> None:
        self.pages.clear()
        self.queued.clear()

    def close(self, seconds: float) -> None:
        self.write()

    def block_keys(self) -> Iterable[BlockKey]:
        return [key for block_keys, _ in self.pages.values() for key in block_keys]


class Cache:
    """A manager whose pages hold a hash of what was computed into them."""

    def __init__(self, num_pages: int, num_host_pages: int, disk: ListedDisk | None = None, blocks_per_page: int = 1):
        self.memory = np.zeros((num_pages, PAGE_BYTES), np.uint8)
        self.manager = KVCacheManager(num_pages, B, blocks_per_page)
        host = HostTier(num_host_pages * PAGE_BYTES, PAGE_BYTES) if num_host_pages else None
        self.disk = disk
        self.tiers = ColderTiers(host, disk, PAGE_BYTES, lambda page_id: self.memory[page_id])
        if disk is not None:
            disk.tiers = self.tiers
        self.manager.attach(self.tiers)
        self.world: dict[BlockKey, str] = {}
        self._number = 0

    def ask(self, tokens: str) -> tuple[int, int]:
        """Runs a prompt; returns how many tokens came from the pool and how many pages from the tiers."""
        manager, found, self._number = self.manager, keys(tokens), self._number + 1
        match = manager.match(found, len(tokens))
        num_pages = manager.num_loadable_pages(found, match, len(tokens))
        if num_pages:
            match = match.whole_pages(manager.page_size)
        request_id = str(self._number)
        assert manager.admit(request_id, match, len(tokens))
        table, first = manager.block_table(request_id), len(match.page_ids)
        for copy in manager.take_copies():
            self.memory[copy.target] = self.memory[copy.source]
        loaded = 0
        for position in range(first, first + num_pages):
            key, page_id = found[(position + 1) * manager.blocks_per_page - 1], table[position]
            if self.tiers.read(key, lambda blob, page_id=page_id: self._copy(page_id, blob)) is None:
                break
            assert bytes(self.memory[page_id]) == key  # never another page's bytes
            loaded += 1
        for position in range(first + loaded, len(found) // manager.blocks_per_page):
            key = found[(position + 1) * manager.blocks_per_page - 1]
            self.memory[table[position]] = np.frombuffer(key, np.uint8)
        manager.commit(request_id, found, len(tokens))
        manager.release(request_id)
        manager.check_invariants()
        return match.num_tokens, loaded

    def _copy(self, page_id: int, blob: np.ndarray) -> bool:
        self.memory[page_id] = blob
        return True

    def events(self) -> list[KVEvent]:
        events = self.manager.take_events()
        for event in events:
            match event:
                case BlocksStored(stored, tier):
                    self.world.update(dict.fromkeys(stored, tier))
                case BlocksRemoved(removed):
                    for key in removed:
                        self.world.pop(key, None)
                case CacheCleared():
                    self.world.clear()
        return events


def test_a_page_that_the_pool_evicts_lies_in_the_host_and_the_world_hears_where_it_is() -> None:
    cache = Cache(num_pages=3, num_host_pages=8)
    cache.ask("ABCDEFGHI")
    cache.events()
    cache.ask("abcdefghi")
    assert cache.events() == [
        BlocksStored(tuple(keys("abcdefgh"))),
        BlocksStored(tuple(reversed(keys("ABCDEFGH"))), "host"),
    ]
    assert cache.ask("ABCDEFGHI") == (0, 2)
    cache.events()
    assert [cache.world[key] for key in keys("ABCDEFGHabcdefgh"[:8])] == ["device", "device"]


def test_the_world_hears_of_the_end_of_a_block_when_nobody_holds_it_any_more() -> None:
    cache = Cache(num_pages=3, num_host_pages=2)
    cache.ask("ABCDEFGHI")
    cache.ask("abcdefghi")
    cache.events()
    cache.ask("123456789")  # the host has room for two pages: those of the small letters
    assert BlocksRemoved(tuple(reversed(keys("ABCDEFGH")))) in cache.events()
    assert set(cache.world) == cache.manager.cached_keys()
    assert cache.ask("ABCDEFGHI") == (0, 0)


def test_a_page_that_came_back_is_not_copied_again_when_it_is_evicted_once_more() -> None:
    cache = Cache(num_pages=3, num_host_pages=8)
    for tokens in ("ABCDEFGHI", "abcdefghi") * 3:
        cache.ask(tokens)
    assert cache.tiers.host is not None
    assert cache.tiers.host.num_pages == 4


def test_only_what_was_used_again_goes_to_the_disk() -> None:
    disk = ListedDisk()
    cache = Cache(num_pages=3, num_host_pages=2, disk=disk)
    cache.ask("ABCDEFGHI")
    for tokens in ("abcdefghi", "ABCDEFGHI", "abcdefghi", "123456789", "987654321"):
        cache.ask(tokens)
    disk.write()
    assert set(disk.block_keys()) == set(keys("ABCDEFGH")) | set(keys("abcdefgh"))
    cache.events()
    assert cache.ask("ABCDEFGHI") == (0, 2)


def test_what_lies_on_the_disk_at_the_start_is_told_and_found() -> None:
    disk = ListedDisk()
    block_keys = keys("ABCDEFGH")
    disk.pages = {key: ((key,), key) for key in block_keys}
    cache = Cache(num_pages=3, num_host_pages=0, disk=disk)
    assert cache.events() == [BlocksStored(tuple(sorted(block_keys)), "disk")]
    assert cache.ask("ABCDEFGHI") == (0, 2)


def test_a_hole_ends_what_can_be_loaded() -> None:
    cache = Cache(num_pages=4, num_host_pages=8)
    cache.ask("ABCDEFGHIJKLM")
    cache.ask("abcdefghijklm")
    tiers = cache.tiers
    assert tiers.host is not None
    del tiers.host._pages[keys("ABCDEFGH")[-1]]
    found = keys("ABCDEFGHIJKLM")
    assert cache.manager.num_loadable_pages(found, cache.manager.match(found, 13), 13) == 1


@pytest.mark.parametrize("num_tokens", [8, 9])
def test_a1_the_last_token_is_computed_also_where_its_page_could_be_loaded(num_tokens: int) -> None:
    cache = Cache(num_pages=3, num_host_pages=8)
    cache.ask("ABCDEFGHI")
    cache.ask("abcdefghi")
    assert cache.ask("ABCDEFGHI"[:num_tokens]) == (0, (num_tokens - 1) // B)


class TierMachine(RuleBasedStateMachine):
    """Random prompts over small pools: bytes are always those of their key, the world knows exactly what can be hit,
    and no bound is passed."""

    @initialize(
        num_pages=st.integers(6, 9),
        num_host_pages=st.sampled_from([0, 1, 3, 8]),
        disk_room=st.sampled_from([0, 2, 6]),
        per_page=st.sampled_from([1, 1, 2]),
    )
    def start(self, num_pages: int, num_host_pages: int, disk_room: int, per_page: int) -> None:
        disk = ListedDisk(disk_room) if disk_room else None
        self.cache = Cache(num_pages, num_host_pages, disk, per_page)

    @rule(head=st.sampled_from(["", "AAAA", "BBBB", "AAAABBBB"]), tail=st.text("xy", min_size=1, max_size=11))
    def ask(self, head: str, tail: str) -> None:
        self.cache.ask(head + tail)

    @rule()
    def write(self) -> None:
        if self.cache.disk is not None:
            self.cache.disk.write()

    @rule()
    def reset(self) -> None:
        self.cache.manager.reset()
        assert self.cache.manager.cached_keys() == set()

    @invariant()
    def the_world_knows(self) -> None:
        if hasattr(self, "cache"):
            self.cache.events()
            manager, tiers = self.cache.manager, self.cache.tiers
            assert self.cache.world == {
                key: "device" if manager.pool.index.find(key) is not None else tiers.tier_of(key)
                for key in manager.cached_keys()
            }
            host = self.cache.tiers.host
            assert host is None or host.num_bytes <= host.max_bytes


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(max_examples=100, stateful_step_count=40)
