"""SGLang's cache_aware: thresholds at their edges, the tree, the event mode."""

import pytest

from router.policies.registry import make_policy
from tests.router.policies.shapes import choose, idle, prompt, send, shares, with_hits, with_load

SYSTEM = ("system", 10)


def test_published_defaults() -> None:
    weights = make_policy("sglang_cache_aware").weights
    assert (weights["cache_threshold"], weights["balance_abs_threshold"]) == (0.5, 32.0)
    assert (weights["balance_rel_threshold"], weights["events"]) == (1.1, 0.0)


def test_defaults_of_sglang_router_since_0_2() -> None:
    weights = make_policy("sglang_cache_aware_0_2").weights
    assert (weights["cache_threshold"], weights["balance_abs_threshold"]) == (0.3, 64.0)
    assert (weights["balance_rel_threshold"], weights["events"]) == (1.5, 0.0)


@pytest.mark.parametrize(("matched", "expected"), [(3, "b"), (4, "a")])
def test_since_0_2_more_than_three_tenths_must_match(matched: int, expected: str) -> None:
    policy = make_policy("sglang_cache_aware_0_2")
    send(policy, prompt(("head", matched)), idle("a", "b"), to="a")
    request = prompt(("head", matched), ("rest", 10 - matched))
    assert choose(policy, request, with_load({"a": 2, "b": 1})) == expected


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ({"a": 64, "b": 0}, "a"),
        ({"a": 65, "b": 0}, "b"),
        ({"a": 300, "b": 200}, "a"),  # 100 above, but 300 is not above 1.5 * 200
        ({"a": 301, "b": 200}, "b"),
    ],
)
def test_since_0_2_loads_may_lie_further_apart(loads: dict[str, int], expected: str) -> None:
    policy = make_policy("sglang_cache_aware_0_2")
    send(policy, prompt(SYSTEM), idle("a", "b"), to="a")
    assert choose(policy, prompt(SYSTEM), with_load(loads)) == expected


@pytest.mark.parametrize(("matched", "expected"), [(5, "b"), (6, "a")])
def test_more_than_half_must_match(matched: int, expected: str) -> None:
    """Exactly one half is not more than one half: then load decides, and `a` has more of it."""
    policy = make_policy("sglang_cache_aware")
    send(policy, prompt(("head", matched)), idle("a", "b"), to="a")
    request = prompt(("head", matched), ("rest", 10 - matched))
    assert choose(policy, request, with_load({"a": 2, "b": 1})) == expected


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ({"a": 32, "b": 0}, "a"),  # 32 is not above 32
        ({"a": 33, "b": 0}, "b"),
        ({"a": 433, "b": 400}, "a"),  # 33 above, but 433 is not above 1.1 * 400
        ({"a": 441, "b": 400}, "b"),
    ],
)
def test_imbalance_needs_both_thresholds(loads: dict[str, int], expected: str) -> None:
    policy = make_policy("sglang_cache_aware")
    send(policy, prompt(SYSTEM), idle("a", "b"), to="a")
    assert choose(policy, prompt(SYSTEM), with_load(loads)) == expected


def test_c2_one_hot_worker_switches_affinity_off_for_all() -> None:
    """SGLang's way: what our own default must not do."""
    policy = make_policy("sglang_cache_aware")
    send(policy, prompt(SYSTEM), idle("a", "b", "c"), to="b")
    assert choose(policy, prompt(SYSTEM), with_load({"a": 40, "b": 1, "c": 0})) == "c"


def test_c1_misses_go_by_load_then_by_size_of_the_tree() -> None:
    policy = make_policy("sglang_cache_aware")
    send(policy, prompt(("long", 50)), idle("a", "b", "c"), to="a")
    send(policy, prompt(("short", 5)), idle("a", "b", "c"), to="b")
    assert choose(policy, prompt(("new", 4)), with_load({"a": 0, "b": 1, "c": 1})) == "a"
    assert choose(policy, prompt(("new", 4)), with_load({"a": 0, "b": 0, "c": 1})) == "b"


def test_a_prompt_sent_while_imbalanced_is_in_the_tree_too() -> None:
    policy = make_policy("sglang_cache_aware")
    assert send(policy, prompt(SYSTEM), with_load({"a": 40, "b": 0})) == "b"
    assert choose(policy, prompt(SYSTEM), with_load({"a": 0, "b": 5})) == "b"


def test_event_mode_takes_the_longest_published_match_then_load_then_the_smaller_tree() -> None:
    policy = make_policy("sglang_cache_aware", {"events": 1.0})
    send(policy, prompt(("long", 50)), idle("a", "b", "c"), to="a")
    request = prompt(SYSTEM)
    far = with_hits(with_load({"a": 90, "b": 0, "c": 0}), a=32, b=16)
    assert choose(policy, request, far) == "a"
    assert choose(policy, request, with_hits(with_load({"a": 2, "b": 1, "c": 0}), a=32, b=32)) == "b"
    assert set(shares(policy, request, idle("a", "b", "c"))) == {"b", "c"}
