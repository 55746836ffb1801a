"""Preble's E2: exploit, explore, rebalance."""

import random

import pytest

from router.load.views import ReplicaView
from router.policies.preble import PreblePolicy
from router.policies.registry import make_policy
from tests.router.policies.shapes import choose, idle, prompt, send

REQUEST = prompt(("system", 10))  # 160 tokens


def fast(replica_id: str, hit_tokens: int = 0, **fields: int) -> ReplicaView:
    """100 tokens a second, 0.01 s a decode step."""
    return ReplicaView(replica_id, hit_tokens, prefill_tokens_per_second=100.0, decode_step_seconds=0.01, **fields)


def test_published_defaults() -> None:
    assert dict(make_policy("preble").weights) == {
        "exploit_share": 0.5,
        "window_seconds": 180.0,
        "imbalance": 1.5,
        "min_requests": 50.0,
        "output_tokens": 45.0,
    }


@pytest.mark.parametrize(("hit", "expected"), [(80, "b"), (81, "a")])
def test_exploit_above_one_half_else_explore(hit: int, expected: str) -> None:
    """`a` holds the prefix and did much of late; one half exactly is not above one half."""
    policy = make_policy("preble")
    for number in range(3):
        send(policy, prompt((f"other {number}", 50)), [fast("a"), fast("b")], to="a")
    assert choose(policy, REQUEST, [fast("a", hit), fast("b")]) == expected


def test_costs_are_load_of_the_window_plus_prefill() -> None:
    policy = make_policy("preble")
    replicas = [fast("a", 32), fast("b")]
    send(policy, prompt(("one", 20), new_tokens=10), [fast("a", 120), fast("b")], to="a", now=0.0)
    send(policy, prompt(("two", 10), new_tokens=500), replicas[:1], to="a", now=100.0)
    choice = policy.choose(REQUEST, replicas, 150.0, random.Random(1))
    first, second = (320 - 120) / 100 + 10 * 0.01, (160 - 32) / 100 + 45 * 0.01
    assert choice.scores == pytest.approx({"a": first + second + 1.28, "b": 1.6})
    later = policy.choose(REQUEST, replicas, 180.1, random.Random(1))
    assert later.scores == pytest.approx({"a": second + 1.28, "b": 1.6})


def test_eviction_costs_what_was_sent_within_the_window() -> None:
    """A cache of 30 blocks with 25 sent: 10 more drop the 5 oldest."""
    policy = make_policy("preble", {"output_tokens": 0.0})
    full = [fast("a", num_blocks=30), fast("b", num_blocks=30)]
    send(policy, prompt(("old", 25)), full, to="a", now=0.0)
    load = 25 * 16 / 100
    scores = policy.choose(REQUEST, full, 10.0, random.Random(1)).scores
    assert scores == pytest.approx({"a": load + 5 * 16 / 100 + 1.6, "b": 1.6})
    later = policy.choose(REQUEST, full, 181.0, random.Random(1)).scores
    assert later == pytest.approx({"a": 1.6, "b": 1.6})  # nobody has used them of late


def overloaded(num_requests: int, times: float) -> PreblePolicy:
    """`a` was given `times` as much as `b`, in so many requests."""
    policy = PreblePolicy({"output_tokens": 0.0})
    replicas = [ReplicaView(r, prefill_tokens_per_second=1024.0) for r in "ab"]  # sums without rounding
    for number in range(num_requests - 1):
        send(policy, prompt((f"one {number}", 1)), replicas, to="a")
    send(policy, prompt(("other", int((num_requests - 1) / times))), replicas, to="b")
    return policy


@pytest.mark.parametrize(
    ("num_requests", "times", "expected"),
    [(61, 1.5, "a"), (61, 1.52, "b"), (49, 4.0, "a")],  # equal is not above; too few requests to tell
)
def test_an_overloaded_holder_gives_the_request_to_the_lightest(num_requests: int, times: float, expected: str) -> None:
    policy = overloaded(num_requests, times)
    assert choose(policy, REQUEST, [ReplicaView("a", 144), ReplicaView("b")]) == expected


def test_c2_an_overloaded_replica_costs_no_other_its_affinity() -> None:
    policy = overloaded(100, 10.0)
    assert choose(policy, REQUEST, [ReplicaView("a"), ReplicaView("b", 144)]) == "b"


def test_among_several_holders_the_cheaper_one() -> None:
    policy = make_policy("preble")
    send(policy, prompt(("other", 10)), idle("a", "b", "c"), to="a")
    assert choose(policy, REQUEST, [ReplicaView("a", 96), ReplicaView("b", 96), ReplicaView("c")]) == "b"


def test_a_failed_replica_has_done_nothing() -> None:
    policy = make_policy("preble")
    send(policy, prompt(("other", 100)), [fast("a"), fast("b")], to="a")
    policy.forget("a")
    scores = policy.choose(REQUEST, [fast("a"), fast("b")], 0.0, random.Random(1)).scores
    assert scores["a"] == scores["b"]
