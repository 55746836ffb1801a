"""What the router keeps of past decisions is bounded by their number, not by prompts or fleets."""

from random import Random

import pytest

from router.decision import MAX_SCORES, Decision, DecisionLog, Outcome, ReplicaScore
from router.ladder import Rung


def decision(num_replicas: int, num_blocks: int, request_id: str = "request") -> Decision:
    """To the last replica."""
    names = [f"replica-{number}" for number in range(num_replicas)]
    Random(1).shuffle(names)
    scores = tuple(ReplicaScore(name, float(name.split("-")[1]), 0, 0, 0, 0) for name in names)
    keys = tuple(number.to_bytes(16, "big") for number in range(num_blocks))
    chosen = f"replica-{num_replicas - 1}"
    return Decision(request_id, chosen, "p", Outcome.WARM, Rung.FRESH, "r", 10, 0, 0, scores, {}, keys)


def test_block_keys_of_long_prompts_are_not_kept() -> None:
    log = DecisionLog()
    log.add(decision(2, 8192))
    (kept,) = log
    assert kept.block_keys == ()
    assert kept.to_dict() == decision(2, 0).to_dict()


def test_of_a_large_fleet_the_chosen_replica_and_the_closest_are_kept() -> None:
    log = DecisionLog()
    log.add(decision(1000, 0))
    (kept,) = log
    numbers = {int(score.replica_id.split("-")[1]) for score in kept.scores}
    assert numbers == {*range(MAX_SCORES - 1), 999}


def test_a_capacity_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity"):
        DecisionLog(0)


def test_the_log_is_bounded_and_finds_the_latest() -> None:
    log = DecisionLog(capacity=3)
    for number in range(5):
        log.add(decision(number + 1, 0, f"r{number % 4}"))
    assert len(log) == 3
    assert [kept.replica_id for kept in log] == ["replica-2", "replica-3", "replica-4"]
    assert log.find("r1") is None
    log.add(decision(10, 0, "r3"))
    found = log.find("r3")
    assert found is not None
    assert found.replica_id == "replica-9"
