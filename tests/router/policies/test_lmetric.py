"""LMetric: new prefill tokens times the batch."""

import random

from router.load.views import ReplicaView
from router.policies.registry import make_policy
from tests.router.policies.shapes import choose, prompt

REQUEST = prompt(("system", 10))


def test_the_product() -> None:
    replicas = [
        ReplicaView("a", hit_tokens=144, num_running=4, num_waiting=1, queued_prefill_tokens=100),
        ReplicaView("b", num_running=0),
        ReplicaView("c", hit_tokens=80, num_running=1, queued_prefill_tokens=0),
    ]
    choice = make_policy("lmetric").choose(REQUEST, replicas, 0.0, random.Random(1))
    assert choice.scores == {"a": (100 + 16) * 6.0, "b": 160 * 1.0, "c": 80 * 2.0}
    assert choice.replica_id == "b"  # as cheap as c, and less loaded


def test_only_the_decode_batch() -> None:
    assert dict(make_policy("lmetric").weights) == {"count_waiting": 1.0}
    replica = ReplicaView("a", num_running=4, num_waiting=9)
    choice = make_policy("lmetric", {"count_waiting": 0.0}).choose(REQUEST, [replica], 0.0, random.Random(1))
    assert choice.scores == {"a": 160 * 5.0}


def test_a_batch_as_many_times_larger_as_the_cache_saves_is_the_edge() -> None:
    """A tenth to compute is worth it up to ten times the batch."""
    policy = make_policy("lmetric")
    warm = {"hit_tokens": 144}
    assert choose(policy, REQUEST, [ReplicaView("a", num_running=8, **warm), ReplicaView("b")]) == "a"
    assert choose(policy, REQUEST, [ReplicaView("a", num_running=10, **warm), ReplicaView("b")]) == "b"
