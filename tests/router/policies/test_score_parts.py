"""An explanation's parts are those of the score that decides."""

import random
from math import prod

import pytest

from router.load.views import ReplicaView
from router.policies.base import Policy
from router.policies.registry import POLICIES, make_policy
from tests.router.policies.shapes import prompt

REPLICAS = [
    ReplicaView("a", hit_tokens=64, num_running=3, num_waiting=2, queued_prefill_tokens=700, recent_prefill_tokens=90.0,
                prefill_tokens_per_second=400.0, decode_step_seconds=0.05, num_blocks=40, num_active_blocks=39),
    ReplicaView("b", num_running=1, queued_prefill_tokens=20, recent_prefill_tokens=500.0,
                prefill_tokens_per_second=500.0, num_blocks=40, num_active_blocks=4),
    ReplicaView("c", num_blocks=40, recent_prefill_tokens=3000.0),
]  # fmt: skip
WITH_PARTS = {"expected_finish": sum, "llmd_weighted": sum, "llmd_p2p": sum, "dynamo_cost": sum, "lmetric": prod}


def without_parts(policy: type[Policy]) -> bool:
    return policy.score_parts is Policy.score_parts


@pytest.mark.parametrize("name", WITH_PARTS)
def test_parts_make_the_score(name: str) -> None:
    policy, request = make_policy(name), prompt(("system", 6), tail=5)
    scores = policy.choose(request, REPLICAS, 0.0, random.Random(1)).scores
    parts = policy.score_parts(request, REPLICAS)
    assert set(parts) == set(scores) == {"a", "b", "c"}
    for replica_id, score in scores.items():
        assert WITH_PARTS[name](parts[replica_id].values()) == pytest.approx(score)
    assert len({tuple(each) for each in parts.values()}) == 1  # the same names in the same order
    assert any(len(set(column)) > 1 for column in zip(*(each.values() for each in parts.values()), strict=True))


def test_the_others_have_none() -> None:
    others = [name for name, policy in POLICIES.items() if without_parts(policy)]
    assert set(others) == set(POLICIES) - set(WITH_PARTS)
    assert make_policy("random").score_parts(prompt(tail=3), REPLICAS) == {}
