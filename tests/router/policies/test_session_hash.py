"""Sticky sessions."""

from collections import Counter

from router.policies.registry import make_policy
from tests.router.policies.shapes import IDS, choose, idle, prompt, with_load


def test_a_session_stays_whatever_the_load_and_the_prompt() -> None:
    policy = make_policy("session_hash")
    first = choose(policy, prompt(("hello", 3), session="alice"), idle())
    busy = with_load({replica_id: 100 if replica_id == first else 0 for replica_id in IDS})
    for turn in range(20):
        assert choose(policy, prompt((f"turn {turn}", turn), session="alice"), busy, seed=turn) == first


def test_sessions_spread_and_few_of_them_move_when_a_replica_goes() -> None:
    policy = make_policy("session_hash")
    before = {n: choose(policy, prompt(session=f"session {n}"), idle()) for n in range(2000)}
    assert min(Counter(before.values()).values()) > 300
    after = {n: choose(policy, prompt(session=f"session {n}"), idle("a", "b", "c")) for n in range(2000)}
    assert all(after[n] == before[n] for n in before if before[n] != "d")
    assert "d" not in after.values()


def test_a_request_without_a_session_goes_where_the_fewest_are_in_flight() -> None:
    policy = make_policy("session_hash")
    replicas = with_load({"a": 3, "b": 1, "c": 2})
    assert {choose(policy, prompt(("hello", 2)), replicas, seed=seed) for seed in range(20)} == {"b"}
