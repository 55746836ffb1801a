"""Dynamo's cost, term by term."""

import random
from collections import Counter

import pytest

from router.load.views import ReplicaView
from router.policies.registry import make_policy
from tests.router.policies.shapes import prompt, shares

REQUEST = prompt(("system", 10))  # 160 tokens: 10 blocks


def costs(weights: dict[str, float], *replicas: ReplicaView) -> dict[str, float]:
    return dict(make_policy("dynamo_cost", weights).choose(REQUEST, replicas, 0.0, random.Random(1)).scores)


def test_published_defaults() -> None:
    assert dict(make_policy("dynamo_cost").weights) == {
        "overlap_credit": 1.0,
        "credit_decay": 0.0,
        "prefill_scale": 1.0,
        "decode_request_weight": 0.0,
        "temperature": 0.0,
    }


def test_cost_in_blocks() -> None:
    warm = ReplicaView("a", hit_tokens=128, queued_prefill_tokens=320, num_blocks=100, num_active_blocks=30)
    cold = ReplicaView("b", num_blocks=100, num_active_blocks=5)
    found = costs({}, warm, cold)
    assert found["a"] == (20 + 10 - 8) + (30 + 20 + 10)  # prefill, decode
    assert found["b"] == 10 + (5 + 10)


def test_credit_cannot_make_prefill_negative() -> None:
    assert costs({"overlap_credit": 3.0}, ReplicaView("a", hit_tokens=144))["a"] == 0 + 10


def test_a_partial_block_counts_as_one() -> None:
    policy = make_policy("dynamo_cost")
    choice = policy.choose(prompt(("system", 10), tail=1), [ReplicaView("a")], 0.0, random.Random(1))
    assert choice.scores["a"] == 11 + 11


def test_prefill_scale_and_request_weight() -> None:
    replica = ReplicaView("a", hit_tokens=80, num_running=2, num_waiting=1, num_active_blocks=7)
    assert costs({"prefill_scale": 2.0, "decode_request_weight": 0.5}, replica)["a"] == 2 * 5 + (7 + 10) + 0.5 * 3


def test_credit_decays_with_prefill_above_the_least() -> None:
    """80 excess tokens are 5 blocks, half of the prompt: 1 / (1 + 2 * 0.5) leaves half of the credit."""
    busy = ReplicaView("a", hit_tokens=128, queued_prefill_tokens=112)
    floor = ReplicaView("b", hit_tokens=128, queued_prefill_tokens=32)
    found = costs({"credit_decay": 2.0}, busy, floor)
    assert found["a"] == pytest.approx(7 + 10 - 4 + 7 + 10)
    assert found["b"] == pytest.approx(2 + 10 - 8 + 2 + 10)


def test_temperature_samples_a_softmax_of_normalised_costs() -> None:
    """Costs 20 and 12 over a range of 8: odds of e^(1 / 0.5) = 7.39 for the cheaper one."""
    replicas = [ReplicaView("a"), ReplicaView("b", hit_tokens=128)]
    found = shares(make_policy("dynamo_cost", {"temperature": 0.5}), REQUEST, replicas, times=4000)
    assert found["b"] / found["a"] == pytest.approx(7.39, rel=0.15)
    even = shares(make_policy("dynamo_cost", {"temperature": 0.5}), REQUEST, [ReplicaView("a"), ReplicaView("b")])
    assert even["a"] == pytest.approx(200, abs=50)


def test_ties_go_by_chance() -> None:
    found: Counter[str] = shares(make_policy("dynamo_cost"), REQUEST, [ReplicaView("a"), ReplicaView("b")])
    assert min(found["a"], found["b"]) > 150
