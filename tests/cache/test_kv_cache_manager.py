"""The manager's rules, one by one; `test_kv_cache_manager_model.py` tries their mixtures."""

import pytest

from cache.block_hasher import BlockHasher, BlockKey
from cache.events import BlocksRemoved, BlocksStored, CacheCleared
from cache.kv_cache_manager import KVCacheManager, PageCopy

B = 4
HASHER = BlockHasher(bytes(16), "weights", B)


def keys(tokens: str) -> list[BlockKey]:
    return HASHER.keys([ord(token) for token in tokens])


def compute(manager: KVCacheManager, request_id: str, tokens: str) -> int:
    """Runs a request's prefill to its end; returns how many tokens it did not have to compute."""
    match = manager.match(keys(tokens), len(tokens))
    assert manager.admit(request_id, match, len(tokens))
    manager.commit(request_id, keys(tokens), len(tokens))
    manager.check_invariants()
    return match.num_tokens


def test_the_page_example() -> None:
    """7 equal tokens, of which the one full page of 4 is reusable; 8 are computed."""
    manager = KVCacheManager(16, B)
    compute(manager, "old", "ABCDEFGHIJKL")
    match = manager.match(keys("ABCDEFGXIJKL"), 12)
    assert match.num_tokens == 4
    assert 12 - match.num_tokens == 8
    assert list(match.page_ids) == manager.block_table("old")[:1]


@pytest.mark.parametrize(("length", "cached"), [(1, 0), (3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_a1_2_the_last_token_is_always_computed(length: int, cached: int) -> None:
    manager = KVCacheManager(16, B)
    tokens = "ABCDEFGHIJKLM"[:length]
    assert compute(manager, "first", tokens) == 0
    assert compute(manager, "second", tokens) == cached == B * ((length - 1) // B)


def test_3_a_full_hit_keeps_the_chain_whole() -> None:
    manager = KVCacheManager(32, B)
    first, longer = "ABCDEFGH", "ABCDEFGHIJKL"
    assert [compute(manager, f"{i}", text) for i, text in enumerate([first, first, longer, longer])] == [0, 4, 8, 8]


def test_a2_4_an_evicted_page_takes_its_keys_with_it() -> None:
    manager = KVCacheManager(4, B)
    compute(manager, "first", "ABCDEFGHIJKL")
    manager.release("first")
    compute(manager, "other", "abcdefghijklmnop")
    manager.release("other")
    assert manager.match(keys("ABCDEFGHIJKL"), 12).num_tokens == 0
    assert manager.cached_keys() == set(keys("abcdefghijklmnop"))


def test_eviction_takes_empty_pages_then_tails_then_the_shared_beginning() -> None:
    manager = KVCacheManager(5, B)
    compute(manager, "first", "ABCDEFGHIJKL")
    manager.release("first")
    for position, filler in enumerate(["xx", "yyyyyyy", "zzzzz"]):
        compute(manager, filler, filler)  # 1 page (empty), 2 pages (1 empty), 2 pages
        assert manager.match(keys("ABCDEFGHIJKLM"), 13).num_tokens == (12, 8, 0)[position]


def test_a_hit_is_not_handed_out_as_a_fresh_page() -> None:
    manager = KVCacheManager(3, B)
    compute(manager, "first", "ABCDEFGH")
    manager.release("first")
    match = manager.match(keys("ABCDEFGHI"), 9)
    assert manager.admit("second", match, 9)
    assert manager.block_table("second")[:2] == list(match.page_ids)
    manager.check_invariants()


def test_what_does_not_fit_changes_nothing() -> None:
    manager = KVCacheManager(4, B)
    compute(manager, "first", "ABCDEFGH")
    before = manager.cached_keys()
    assert not manager.admit("big", manager.match(keys("zzzz"), 12), 12)
    assert not manager.grow("first", 20)
    assert manager.cached_keys() == before
    assert manager.pool.num_free == 2
    manager.check_invariants()


def test_a18_a16_releasing_twice_or_the_unknown_is_harmless() -> None:
    manager = KVCacheManager(4, B)
    compute(manager, "first", "ABCDEFGH")
    for request_id in ("first", "first", "never seen"):
        manager.release(request_id)
        manager.check_invariants()
    assert manager.pool.num_free == 4


def test_a21_5_nothing_is_findable_before_it_is_committed() -> None:
    manager = KVCacheManager(8, B)
    assert manager.admit("first", manager.match(keys("ABCDEFGH"), 8), 8)
    assert manager.match(keys("ABCDEFGH"), 9).num_tokens == 0
    manager.commit("first", keys("ABCDEFGH"), 5)
    assert manager.match(keys("ABCDEFGH"), 9).num_tokens == 4
    manager.release("first")
    assert manager.match(keys("ABCDEFGH"), 9).num_tokens == 4


def test_a44_partial_blocks_are_not_cached() -> None:
    manager = KVCacheManager(8, B)
    compute(manager, "first", "ABCDEF")
    assert manager.cached_keys() == set(keys("ABCD"))


def test_29_a29_two_copies_of_one_key_are_one_event_each_way() -> None:
    manager = KVCacheManager(4, B)
    for request_id in ("one", "two"):  # both admitted before either is computed
        assert manager.admit(request_id, manager.match(keys("ABCDEFGH"), 8), 8)
    for request_id in ("one", "two"):
        manager.commit(request_id, keys("ABCDEFGH"), 8)
    assert manager.take_events() == [BlocksStored(tuple(keys("ABCDEFGH")))]
    manager.release("one")
    compute(manager, "other", "zzzzzzzz")  # takes both pages of "one"
    assert manager.take_events() == [BlocksStored(tuple(keys("zzzzzzzz")))]
    assert manager.match(keys("ABCDEFGH"), 9).num_tokens == 8
    manager.release("two")
    compute(manager, "last", "yyyyyyyy")
    removed, stored = manager.take_events()
    assert removed == BlocksRemoved(tuple(reversed(keys("ABCDEFGH"))))
    assert stored == BlocksStored(tuple(keys("yyyyyyyy")))


def test_reset_forgets_everything_and_says_so() -> None:
    manager = KVCacheManager(8, B)
    compute(manager, "running", "ABCDEF")
    manager.take_events()
    manager.reset()
    assert manager.take_events() == [CacheCleared()]
    assert manager.match(keys("ABCDEF"), 6).num_tokens == 0
    assert manager.grow("running", 12)
    manager.commit("running", keys("ABCDEFGHIJKL"), 12)
    manager.check_invariants()
    assert manager.match(keys("ABCDEFGHIJKL"), 13).num_tokens == 0  # the chain's beginning is gone
    manager.release("running")
    assert manager.pool.num_active == 0


def test_a20_without_prefix_caching_nothing_is_kept() -> None:
    manager = KVCacheManager(8, B, prefix_caching=False)
    assert compute(manager, "first", "ABCDEFGH") == 0
    assert compute(manager, "second", "ABCDEFGH") == 0
    assert manager.take_events() == []


class TestLargePages:
    """A page holds two hash blocks: whole pages are shared, a partly matching one is copied."""

    def test_a_partly_matching_page_is_copied(self) -> None:
        manager = KVCacheManager(8, B, blocks_per_page=2)
        compute(manager, "first", "ABCDEFGHIJKLMNOP")
        match = manager.match(keys("ABCDEFGHIJKLxxxx"), 16)
        assert match.num_tokens == 12
        source = manager.block_table("first")[1]
        assert (match.page_ids, match.partial_page) == ((manager.block_table("first")[0],), source)
        assert manager.admit("second", match, 16)
        target = manager.block_table("second")[1]
        assert target != source
        assert manager.take_copies() == [PageCopy(source, target, 4)]

    def test_the_copy_can_be_hit_when_its_source_is_gone(self) -> None:
        manager = KVCacheManager(4, B, blocks_per_page=2)
        compute(manager, "first", "ABCDEFGHIJKLMNOP")
        compute(manager, "second", "ABCDEFGHIJKLxxxx")
        manager.release("first")
        compute(manager, "third", "zzzzzzzzz")  # evicts the first one's second page
        manager.release("third")
        assert manager.match(keys("ABCDEFGHIJKLMNOP"), 17).num_tokens == 12
        assert manager.match(keys("ABCDEFGHIJKLxxxx"), 17).num_tokens == 16

    def test_a_page_still_being_filled_is_shared_by_copy(self) -> None:
        manager = KVCacheManager(8, B, blocks_per_page=2)
        assert manager.admit("first", manager.match(keys("ABCDEFGH"), 8), 8)
        manager.commit("first", keys("ABCDEFGH"), 4)
        match = manager.match(keys("ABCDEFGH"), 8)
        assert (match.num_tokens, match.page_ids) == (4, ())
        assert manager.admit("second", match, 8)
        assert [copy.num_tokens for copy in manager.take_copies()] == [4]
        for request_id in ("first", "second"):
            manager.commit(request_id, keys("ABCDEFGH"), 8)
        manager.check_invariants()
