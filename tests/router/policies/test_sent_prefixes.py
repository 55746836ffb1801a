"""The approximate tree against a model, and its bound."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.policies.preble import RequestWindow
from router.policies.sent_prefixes import FORGET_SECONDS, LastSeen, SentPrefixes
from tests.router.policies.shapes import idle, keys

paths = st.lists(st.integers(0, 2), max_size=6)
steps = st.lists(st.tuples(st.sampled_from("abc"), paths), max_size=40)


def path_keys(path: Sequence[int]) -> list[bytes]:
    return keys(*((str(step), 1) for step in path))


@given(steps, paths)
def test_depth_is_the_longest_common_head_of_what_was_sent(sent: list[tuple[str, list[int]]], asked: list[int]) -> None:
    tree = SentPrefixes()
    for now, (replica_id, path) in enumerate(sent):
        tree.insert(replica_id, path_keys(path), float(now))
    for replica_id in "abc":
        heads = {tuple(path[:n]) for r, path in sent if r == replica_id for n in range(len(path) + 1)}
        expected = max((n for n in range(len(asked) + 1) if tuple(asked[:n]) in heads), default=0)
        assert tree.depth(replica_id, path_keys(asked)) == expected
        assert tree.num_blocks(replica_id) == len(heads - {()})
    assert len(tree) == sum(tree.num_blocks(replica_id) for replica_id in "abc")


@settings(max_examples=50)
@given(steps, st.integers(1, 12))
def test_what_is_left_is_whole_heads_within_the_bound(sent: list[tuple[str, list[int]]], max_blocks: int) -> None:
    tree = SentPrefixes(max_blocks)
    for now, (replica_id, path) in enumerate(sent):
        tree.insert(replica_id, path_keys(path), float(now))
        assert len(tree) <= max_blocks
    for replica_id, path in sent:
        held = tree._held.get(replica_id, {})
        present = [key in held for key in path_keys(path)]
        assert present == sorted(present, reverse=True)
    assert len(tree) == sum(len(held) for held in tree._held.values())


def test_the_least_recently_sent_goes_first_and_its_tail_before_its_head() -> None:
    tree = SentPrefixes(max_blocks=12)
    for now, name in enumerate(("one", "two", "one", "three")):
        tree.insert("a", keys((name, 4)), float(now))
    assert len(tree) == 12
    tree.insert("a", keys(("four", 2)), 4.0)
    assert [tree.depth("a", keys((name, 4))) for name in ("one", "two", "three")] == [4, 2, 4]


def test_who_sent_most_loses_first() -> None:
    tree = SentPrefixes(max_blocks=20)
    tree.insert("a", keys(("little", 4)), 0.0)
    tree.insert("b", keys(("much", 16)), 1.0)
    tree.insert("a", keys(("more", 2)), 2.0)
    assert tree.num_blocks("a") == 6
    assert tree.num_blocks("b") == 14


def test_forget_trim_and_victims() -> None:
    tree = SentPrefixes()
    tree.insert("a", keys(("old", 5)), 0.0)
    tree.insert("a", keys(("new", 5)), 10.0)
    assert [tree.num_live_victims("a", count, since=5.0) for count in (3, 5, 7, 99)] == [0, 0, 2, 5]
    assert tree.num_live_victims("nobody", 5, since=0.0) == 0
    tree.trim("a", 6)
    assert (tree.num_blocks("a"), tree.depth("a", keys(("old", 5))), tree.depth("a", keys(("new", 5)))) == (6, 1, 5)
    tree.forget("a")
    tree.forget("a")
    assert (len(tree), tree.depth("a", keys(("new", 5)))) == (0, 0)
    with pytest.raises(ValueError, match="max_blocks must be at least 1, got 0"):
        SentPrefixes(0)


def test_last_seen_finds_who_is_gone_once() -> None:
    seen = LastSeen()
    assert seen.update(idle("a", "b"), 0.0) == []
    assert seen.update(idle("a"), FORGET_SECONDS) == []
    assert seen.update(idle("a"), FORGET_SECONDS * 1.2) == ["b"]
    assert seen.update(idle("a"), FORGET_SECONDS * 2) == []


def test_a_window_sums_what_is_in_it() -> None:
    window = RequestWindow()
    for now, replica_id in enumerate("aab"):
        window.add(replica_id, 0.1, float(now))
    assert window.seconds("a") == pytest.approx(0.2)
    window.expire(1.0)
    assert (window.seconds("a"), len(window)) == (pytest.approx(0.1), 2)
    window.forget("a")
    window.forget("a")
    assert (window.seconds("a"), window.seconds("b"), len(window)) == (0.0, 0.1, 1)
    window.expire(9.0)
    assert (window.seconds("b"), len(window)) == (0.0, 0)
