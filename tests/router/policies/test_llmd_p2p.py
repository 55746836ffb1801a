"""llm-d's published pulls: by a fixed number of tokens, from a source drawn by its queue."""

import random
from collections import Counter

import pytest

from router.load.views import ReplicaView
from router.policies.base import PolicyChoice
from router.policies.registry import make_policy
from tests.router.policies.shapes import prompt

REQUEST = prompt(("system", 40))  # 640 tokens
BUSY = ReplicaView("a", hit_tokens=640, given_tokens=640, num_waiting=9, num_blocks=100, num_active_blocks=100)
FREE = ReplicaView("b", num_blocks=100, pull_from="a", pull_tokens=640, pull_seconds=0.1)
LOAD_FIRST = {"prefix": 0.5}


def choose(*replicas: ReplicaView, seed: int = 1, **weights: float) -> PolicyChoice:
    policy = make_policy("llmd_p2p", LOAD_FIRST | weights)
    return policy.choose(REQUEST, replicas, 0.0, random.Random(seed))


def test_the_replica_is_the_one_without_pulls_and_takes_what_it_lacks() -> None:
    alone = make_policy("llmd_weighted", LOAD_FIRST).choose(REQUEST, [BUSY, FREE], 0.0, random.Random(1))
    choice = choose(BUSY, FREE)
    assert (choice.replica_id, choice.scores) == (alone.replica_id, alone.scores)
    assert (choice.pulls, choice.pull_from, choice.pull_tokens) == (True, "a", 640)


@pytest.mark.parametrize(("delta", "pulls"), [(1.0, True), (640.0, True), (641.0, False)])
def test_whether_it_pulls_is_a_number_of_tokens_alone(delta: float, pulls: bool) -> None:
    assert choose(BUSY, FREE, min_cached_token_delta=delta).pulls == pulls
    slow = FREE._replace(pull_seconds=1e6)
    assert choose(BUSY, slow, min_cached_token_delta=delta).pulls == pulls


def test_where_nobody_gives_pages_away_nothing_is_pulled() -> None:
    assert not choose(BUSY, FREE._replace(pull_tokens=0, pull_from="")).pulls


def test_the_source_is_drawn_by_its_queue_among_those_that_hold_as_much() -> None:
    sources = [
        BUSY,
        BUSY._replace(replica_id="c", hit_tokens=624, given_tokens=624, num_waiting=4),
        BUSY._replace(replica_id="d", hit_tokens=600, given_tokens=600),
        BUSY._replace(replica_id="e", given_tokens=0, num_waiting=0),  # it expects as much, and has none of it yet
    ]
    drawn = Counter(choose(*sources, FREE, seed=seed).pull_from for seed in range(600))
    assert set(drawn) == {"a", "c"}  # d holds more than a block less
    assert drawn["c"] / drawn["a"] == pytest.approx(2.0, rel=0.3)  # 1 / 5 to 1 / 10
