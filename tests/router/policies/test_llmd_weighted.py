"""llm-d's scorers, their sum and the affinity filter."""

import random

import pytest

from router.load.views import ReplicaView
from router.policies.registry import make_policy
from tests.router.policies.shapes import choose, prompt

REQUEST = prompt(("system", 10))  # 160 tokens


def scores(weights: dict[str, float], *replicas: ReplicaView) -> dict[str, float]:
    """As llm-d counts: the highest wins."""
    found = make_policy("llmd_weighted", weights).choose(REQUEST, replicas, 0.0, random.Random(1)).scores
    return {replica_id: -score for replica_id, score in found.items()}


ONLY = {"prefix": 0.0, "queue": 0.0, "kv": 0.0, "tokens": 0.0}


def test_published_defaults() -> None:
    weights = make_policy("llmd_weighted").weights
    assert [weights[name] for name in ("prefix", "queue", "kv", "tokens")] == [2.0, 1.0, 1.0, 0.0]
    assert [weights[name] for name in ("length_weight", "max_model_len")] == [0.0, 8192.0]
    assert weights["token_capacity"] == 4 * 1024**2
    assert [weights[name] for name in ("affinity_threshold", "max_wait_seconds")] == [0.0, 18.0]


def test_the_weighted_sum() -> None:
    warm = ReplicaView("a", hit_tokens=120, num_waiting=3, num_blocks=100, num_active_blocks=60)
    free = ReplicaView("b", num_waiting=1, num_blocks=100, num_active_blocks=10)
    full = ReplicaView("c", num_waiting=5, num_blocks=100, num_active_blocks=100)
    found = scores({}, warm, free, full)
    assert found["a"] == pytest.approx(2 * 0.75 + 0.5 + 0.4)
    assert found["b"] == pytest.approx(0 + 1.0 + 0.9)
    assert found["c"] == pytest.approx(0 + 0.0 + 0.0)


def test_equal_queues_score_one() -> None:
    found = scores(ONLY | {"queue": 1.0}, ReplicaView("a", num_waiting=7), ReplicaView("b", num_waiting=7))
    assert found == {"a": 1.0, "b": 1.0}


def test_length_weight_counts_the_square_of_the_matched_length() -> None:
    found = scores(ONLY | {"prefix": 1.0, "length_weight": 0.25, "max_model_len": 320.0}, ReplicaView("a", 80))
    assert found["a"] == pytest.approx(0.25 * (80 / 320) ** 2 + 0.75 * 0.5)
    capped = scores(ONLY | {"prefix": 1.0, "length_weight": 1.0, "max_model_len": 64.0}, ReplicaView("a", 80))
    assert capped["a"] == 1.0


def test_tokens_in_flight_with_those_of_this_prompt() -> None:
    weights = ONLY | {"tokens": 1.0, "token_capacity": 400.0}
    found = scores(
        weights, ReplicaView("a", 60, queued_prefill_tokens=100), ReplicaView("b", queued_prefill_tokens=999)
    )
    assert found["a"] == pytest.approx(1 - 200 / 400)
    assert found["b"] == 0.0


def test_usage_that_nobody_told_is_none() -> None:
    assert scores(ONLY | {"kv": 1.0}, ReplicaView("a")) == {"a": 1.0}


@pytest.mark.parametrize(("hit", "expected"), [(128, "a"), (127, "b")])
def test_the_affinity_filter_keeps_who_holds_four_fifths(hit: int, expected: str) -> None:
    """Without a prefix weight, as llm-d advises: only the filter can prefer the busy one."""
    policy = make_policy("llmd_weighted", {"prefix": 0.0, "affinity_threshold": 0.8})
    assert choose(policy, REQUEST, [ReplicaView("a", hit, num_waiting=4), ReplicaView("b")]) == expected


@pytest.mark.parametrize(("queued", "expected"), [(18_000, "a"), (18_001, "b")])
def test_the_affinity_filter_gives_way_above_18_seconds_of_extra_wait(queued: int, expected: str) -> None:
    policy = make_policy("llmd_weighted", {"prefix": 0.0, "affinity_threshold": 0.8})
    warm = ReplicaView("a", 144, num_waiting=4, queued_prefill_tokens=queued, prefill_tokens_per_second=1000.0)
    assert choose(policy, REQUEST, [warm, ReplicaView("b", prefill_tokens_per_second=1000.0)]) == expected


def test_without_a_limit_the_affinity_filter_never_gives_way() -> None:
    policy = make_policy("llmd_weighted", {"prefix": 0.0, "affinity_threshold": 0.8, "max_wait_seconds": 0.0})
    warm = ReplicaView("a", 144, num_waiting=4, queued_prefill_tokens=10**9)
    assert choose(policy, REQUEST, [warm, ReplicaView("b")]) == "a"
