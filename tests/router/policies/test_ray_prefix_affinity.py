"""Ray's prefix affinity: tree, thresholds, and what it does not do."""

import random

import pytest

from router.policies.registry import make_policy
from tests.router.policies.shapes import choose, idle, prompt, send, shares, with_load

SYSTEM = ("system", 10)


def test_published_defaults() -> None:
    assert dict(make_policy("ray_prefix_affinity").weights) == {
        "imbalanced_threshold": 1e9,
        "match_rate_threshold": 0.1,
    }


def test_the_longest_match_wins() -> None:
    policy = make_policy("ray_prefix_affinity")
    send(policy, prompt(SYSTEM, ("alice", 4)), idle(), to="c")
    send(policy, prompt(SYSTEM, ("bob", 20)), idle(), to="b")
    choice = policy.choose(prompt(SYSTEM, ("alice", 4), ("more", 1)), idle(), 0.0, random.Random(1))
    assert choice.replica_id == "c"
    assert choice.scores == {"a": 0.0, "b": -160.0, "c": -224.0, "d": 0.0}
    assert choice.reason == "224 of 240 tokens sent there before"


@pytest.mark.parametrize(("num_blocks", "expected"), [(9, "b"), (10, "a")])
def test_below_a_tenth_matched_the_smallest_tree_takes_it(num_blocks: int, expected: str) -> None:
    """Of 100 blocks: a match of 9 is below 10 %, one of 10 is not."""
    policy = make_policy("ray_prefix_affinity")
    send(policy, prompt(("shared", num_blocks), ("long", 200)), idle("a", "b", "c"), to="a")
    send(policy, prompt(("little", 5)), idle("a", "b", "c"), to="b")
    send(policy, prompt(("more", 6)), idle("a", "b", "c"), to="c")
    assert choose(policy, prompt(("shared", num_blocks), ("new", 100 - num_blocks)), idle("a", "b", "c")) == expected


def test_c1_the_smallest_tree_takes_a_miss_although_it_is_saturated() -> None:
    """Ray's way: what our own default must not do."""
    policy = make_policy("ray_prefix_affinity")
    send(policy, prompt(("one", 5)), idle("a", "b"), to="a")
    assert choose(policy, prompt(("two", 5)), with_load({"a": 0, "b": 99})) == "b"


@pytest.mark.parametrize(("longest", "expected"), [(10, {"a"}), (11, {"b", "c"})])
def test_above_the_imbalance_threshold_it_is_power_of_two(longest: int, expected: set[str]) -> None:
    policy = make_policy("ray_prefix_affinity", {"imbalanced_threshold": 10.0})
    send(policy, prompt(SYSTEM), idle("a", "b", "c"), to="a")
    replicas = with_load({"a": longest, "b": 0, "c": 0})
    assert set(shares(policy, prompt(SYSTEM), replicas)) == expected


def test_by_default_no_queue_is_too_long() -> None:
    policy = make_policy("ray_prefix_affinity")
    send(policy, prompt(SYSTEM), idle("a", "b"), to="a")
    assert choose(policy, prompt(SYSTEM), with_load({"a": 5000, "b": 0})) == "a"


def test_among_several_with_the_longest_match_the_shorter_queue_wins() -> None:
    policy = make_policy("ray_prefix_affinity")
    for replica_id in ("a", "b"):
        send(policy, prompt(SYSTEM), idle("a", "b", "c"), to=replica_id)
    assert choose(policy, prompt(SYSTEM), with_load({"a": 3, "b": 2, "c": 0})) == "b"
