"""What each baseline does."""

import random

from router.load.views import ReplicaView
from router.policies.base import RequestShape
from router.policies.registry import make_policy

SHAPE = RequestShape(num_tokens=1000, max_new_tokens=64)


def test_round_robin_takes_turns_while_replicas_come_and_go() -> None:
    policy, rng = make_policy("round_robin"), random.Random(1)

    def turn(*ids: str) -> str:
        replicas = [ReplicaView(replica_id) for replica_id in ids]
        replica_id = policy.choose(SHAPE, replicas, 0.0, rng).replica_id
        policy.on_sent(SHAPE, replica_id, replicas, 0.0)
        return replica_id

    assert [turn("a", "b", "c") for _ in range(4)] == ["a", "b", "c", "a"]
    assert [turn("a", "c") for _ in range(3)] == ["c", "a", "c"]
    assert [turn("a", "b", "c", "d") for _ in range(3)] == ["d", "a", "b"]


def test_power_of_two_never_takes_the_busiest_of_three() -> None:
    policy, rng = make_policy("power_of_two"), random.Random(1)
    replicas = [ReplicaView("a", num_waiting=1), ReplicaView("b", num_running=5), ReplicaView("c")]
    chosen = {policy.choose(SHAPE, replicas, 0.0, rng).replica_id for _ in range(100)}
    assert chosen == {"a", "c"}


def test_least_tokens_and_longest_prefix() -> None:
    rng = random.Random(1)
    replicas = [
        ReplicaView("a", hit_tokens=320, queued_prefill_tokens=900),
        ReplicaView("b", hit_tokens=0, queued_prefill_tokens=10),
        ReplicaView("c", hit_tokens=320, queued_prefill_tokens=800, num_running=2),
    ]
    assert make_policy("least_tokens").choose(SHAPE, replicas, 0.0, rng).replica_id == "b"
    assert make_policy("longest_prefix").choose(SHAPE, replicas, 0.0, rng).replica_id == "a"
