"""How far a prompt is equal to what is cached, beyond what can be reused; in its own name space alone."""

import pytest

from cache.block_contents import BlockContents
from cache.block_hasher import BlockHasher, ExtraKeys
from cache.kv_cache_manager import KVCacheManager, PrefixOverlap

B = 4
HASHER = BlockHasher(bytes(16), "weights", B)
NOBODY = ExtraKeys()


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def compute(manager: KVCacheManager, text: str, extra: ExtraKeys = NOBODY) -> None:
    keys = HASHER.keys(ids(text), extra)
    assert manager.admit(text, manager.match(keys, len(text)), len(text))
    manager.commit(text, keys, len(text), ids(text), HASHER.root(extra))
    manager.release(text)
    manager.check_invariants()


def overlap(manager: KVCacheManager, text: str, extra: ExtraKeys = NOBODY) -> tuple[int, int]:
    found = manager.overlap(HASHER.keys(ids(text), extra), ids(text), HASHER.root(extra))
    return found.num_reusable_tokens, found.num_equal_tokens


@pytest.fixture
def manager() -> KVCacheManager:
    return KVCacheManager(32, B, keep_token_ids=True)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ABCDEFGXIJKL", (4, 7)),  # the page example: 7 equal, 4 reusable, 8 computed
        ("ABCDEFGHIJKL", (8, 12)),  # all of it is there, and the last token is computed all the same (A1)
        ("ABCDEFGHIJKLM", (12, 12)),
        ("ABCDEF", (4, 6)),
        ("AB", (0, 2)),
        ("ABCX", (0, 3)),
        ("XBCDEFGH", (0, 0)),
        ("ABCDXFGHIJKL", (4, 4)),
    ],
)
def test_equal_tokens_beyond_the_last_reusable_block(
    manager: KVCacheManager, prompt: str, expected: tuple[int, int]
) -> None:
    compute(manager, "ABCDEFGHIJKL")
    assert overlap(manager, prompt) == expected


def test_the_block_with_the_longest_beginning_counts(manager: KVCacheManager) -> None:
    for text in ("ABCDEXXX", "ABCDEFGX", "ABCDEFXX", "ABCDXXXX"):
        compute(manager, text)
    assert overlap(manager, "ABCDEFGHI") == (4, 7)


def test_51_nothing_is_learned_of_another_name_space(manager: KVCacheManager) -> None:
    mine, other = ExtraKeys(cache_salt="mine"), ExtraKeys(cache_salt="other")
    compute(manager, "ABCDEFGHIJKL", other)
    for extra in (mine, NOBODY, ExtraKeys(adapter="other"), ExtraKeys(image="other")):
        assert overlap(manager, "ABCDEFGXIJKL", extra) == (0, 0)
    assert overlap(manager, "ABCDEFGXIJKL", other) == (4, 7)


def test_no_root_is_another_ones_or_a_blocks() -> None:
    extras = [NOBODY, ExtraKeys(cache_salt=""), ExtraKeys(cache_salt="a"), ExtraKeys(adapter="a")]
    roots = {HASHER.root(extra) for extra in extras} | {BlockHasher(bytes(16), "other", B).root()}
    assert len(roots) == 5
    assert roots.isdisjoint(HASHER.keys(ids("ABCD")))


def test_evicted_blocks_and_forgotten_ones_are_equal_to_nothing() -> None:
    manager = KVCacheManager(3, B, keep_token_ids=True)
    compute(manager, "ABCDEFGHIJKL")
    compute(manager, "abcdefgh")  # takes the two last pages
    assert overlap(manager, "ABCDEFGHIJKL") == (4, 4)
    manager.reset()
    manager.check_invariants()
    assert overlap(manager, "abcd") == (0, 0)


def test_pages_of_several_blocks_are_compared_in_blocks() -> None:
    manager = KVCacheManager(8, B, blocks_per_page=2, keep_token_ids=True)
    compute(manager, "ABCDEFGHIJKLMNOP")
    assert overlap(manager, "ABCDEFGHIJKLMXOP") == (12, 13)


def test_without_token_ids_only_what_can_be_reused_is_known() -> None:
    manager = KVCacheManager(8, B)
    compute(manager, "ABCDEFGH")
    assert overlap(manager, "ABCDEFGX") == (4, 4)
    off = KVCacheManager(8, B, prefix_caching=False, keep_token_ids=True)
    compute(off, "ABCDEFGH")
    assert overlap(off, "ABCDEFGH") == (0, 0)
    assert PrefixOverlap() == PrefixOverlap(0, 0)


def test_contents_forget_what_they_held_and_ignore_the_unknown() -> None:
    contents, (first, second), root = BlockContents(), HASHER.keys(ids("ABCDEFGH")), HASHER.root()
    contents.add(first, root, ids("ABCD"))
    contents.add(second, first, ids("EFGH"))
    assert contents.num_equal(first, ids("EFX")) == 2
    contents.forget([second, second])
    assert (contents.num_equal(first, ids("EFX")), len(contents)) == (0, 1)
    contents.forget([first])
    contents.check_invariants()
    assert contents._followers == {}
