"""DualMap: two candidates per head, the warmer while it is in time."""

import random
from collections import Counter

import pytest

from router.load.views import ReplicaView
from router.policies.registry import make_policy
from tests.router.policies.shapes import IDS, choose, idle, prompt, send

REQUEST = prompt(("system", 4), ("user", 8))


def pair_of(request_parts: tuple[tuple[str, int], ...], ids: tuple[str, ...] = IDS) -> set[str]:
    """The two candidates of a head that is not hot."""
    policy = make_policy("dualmap")
    for number in range(100):
        send(policy, prompt((f"filler {number}", 4)), idle(*ids), to=ids[0])
    return set(policy.choose(prompt(*request_parts), idle(*ids), 0.0, random.Random(1)).scores)


def settled() -> tuple[object, str, str]:
    """A policy that has seen other traffic, and the candidates of REQUEST."""
    first, second = sorted(pair_of((("system", 4), ("user", 8))))
    policy = make_policy("dualmap")
    for number in range(100):
        send(policy, prompt((f"filler {number}", 4)), idle(), to="a")
    return policy, first, second


def replicas_with(**fields: dict[str, float]) -> list[ReplicaView]:
    """100 tokens a second everywhere."""
    return [ReplicaView(r, prefill_tokens_per_second=100.0, **fields.get(r, {})) for r in IDS]  # type: ignore[arg-type]


def test_published_defaults() -> None:
    assert dict(make_policy("dualmap").weights) == {
        "hash_blocks": 4.0,
        "ttft_target_seconds": 5.0,
        "window_requests": 1000.0,
    }


def test_equal_heads_have_the_same_two_candidates_and_others_have_others() -> None:
    assert len(pair_of((("system", 4), ("user", 8)))) == 2
    assert pair_of((("system", 4), ("user", 8))) == pair_of((("system", 4), ("somebody else", 2)))
    pairs = {frozenset(pair_of(((f"system {n}", 4),))) for n in range(60)}
    assert len(pairs) == 6  # all pairs of four


def test_the_candidates_of_most_heads_stay_when_a_replica_goes() -> None:
    moved = 0
    for number in range(60):
        before = pair_of(((f"system {number}", 4),))
        after = pair_of(((f"system {number}", 4),), ("a", "b", "c"))
        moved += len(before - {"d"} - after)
    assert moved == 0


def test_the_warmer_candidate_wins_although_it_is_busier() -> None:
    policy, first, second = settled()
    replicas = replicas_with(**{second: {"hit_tokens": 64, "queued_prefill_tokens": 300}})
    choice = policy.choose(REQUEST, replicas, 0.0, random.Random(1))  # type: ignore[attr-defined]
    assert choice.replica_id == second
    assert choice.scores == pytest.approx({first: 1.92, second: (300 + 128) / 100})


@pytest.mark.parametrize(("queued", "warm"), [(372, True), (373, False)])
def test_the_edge_of_the_ttft_target(queued: int, warm: bool) -> None:
    """(372 + 192 - 64) / 100 is 5 s, which is still in time."""
    policy, first, second = settled()
    replicas = replicas_with(**{second: {"hit_tokens": 64, "queued_prefill_tokens": queued}})
    assert choose(policy, REQUEST, replicas) == (second if warm else first)  # type: ignore[arg-type]


def test_where_neither_is_in_time_the_sooner_one() -> None:
    policy, first, second = settled()
    late = {second: {"hit_tokens": 64, "queued_prefill_tokens": 900}, first: {"queued_prefill_tokens": 2000}}
    assert choose(policy, REQUEST, replicas_with(**late)) == second  # type: ignore[arg-type]


def test_as_warm_as_the_other_the_sooner_one() -> None:
    policy, first, second = settled()
    equal = {second: {"hit_tokens": 64, "queued_prefill_tokens": 10}, first: {"hit_tokens": 64}}
    assert choose(policy, REQUEST, replicas_with(**equal)) == first  # type: ignore[arg-type]


def test_a_third_replica_is_never_chosen_however_idle() -> None:
    policy, first, second = settled()
    busy = {replica_id: {"queued_prefill_tokens": 10**6} for replica_id in (first, second)}
    assert choose(policy, REQUEST, replicas_with(**busy)) in (first, second)  # type: ignore[arg-type]


def test_a_hot_head_is_hashed_deeper() -> None:
    """With four replicas a head is hot when it begins more than half of the prompts."""
    policy, rng = make_policy("dualmap"), random.Random(1)
    chosen: Counter[str] = Counter()
    for number in range(400):
        chosen[send(policy, prompt(("hot system", 4), (f"user {number}", 4)), idle(), rng=rng)] += 1
    assert min(chosen[replica_id] for replica_id in IDS) > 50


@pytest.mark.parametrize(("num_hot", "num_others", "num_pairs"), [(4, 5, 1), (5, 4, 6)])
def test_the_edge_of_hot(num_hot: int, num_others: int, num_pairs: int) -> None:
    """With the request itself 5 of 10 prompts begin with the head: half, which two of four replicas can carry."""
    policy, rng = make_policy("dualmap"), random.Random(1)
    for number in range(num_others):
        send(policy, prompt((f"other {number}", 4)), idle(), to="a")
    for number in range(num_hot):
        send(policy, prompt(("system", 4), (f"user {number}", 4)), idle(), to="a")
    users = [prompt(("system", 4), (f"new {number}", 4)) for number in range(60)]
    pairs = {frozenset(policy.choose(user, idle(), 0.0, rng).scores) for user in users}
    assert len(pairs) == num_pairs


def test_only_the_last_requests_make_a_head_hot() -> None:
    policy, rng = make_policy("dualmap", {"window_requests": 10.0}), random.Random(1)
    for number in range(50):
        send(policy, prompt(("system", 4), (f"user {number}", 4)), idle(), to="a")
    for number in range(10):
        send(policy, prompt((f"other {number}", 4)), idle(), to="a")
    users = [prompt(("system", 4), (f"new {number}", 4)) for number in range(60)]
    assert len({frozenset(policy.choose(user, idle(), 0.0, rng).scores) for user in users}) == 1


@pytest.mark.parametrize("request_shape", [prompt(tail=15), prompt(("short", 3))])
def test_a_prompt_too_short_to_hash_goes_to_the_soonest_of_all(request_shape: object) -> None:
    replicas = replicas_with(**{r: {"queued_prefill_tokens": 50} for r in ("a", "b", "d")})
    assert choose(make_policy("dualmap"), request_shape, replicas) == "c"  # type: ignore[arg-type]
