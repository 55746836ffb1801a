"""Consistent hashing of the head with bounded load."""

import pytest

from router.policies.hash_ring import ring_of
from router.policies.registry import make_policy
from tests.router.policies.shapes import IDS, choose, idle, keys, prompt, with_load

HEAD = keys(("system", 16))[-1]
ORDER = list(ring_of(IDS).walk(HEAD))


def test_published_defaults() -> None:
    assert dict(make_policy("prefix_hash_bounded").weights) == {"prefix_tokens": 256.0, "load_factor": 1.25}


def test_only_the_first_256_tokens_count() -> None:
    policy = make_policy("prefix_hash_bounded")
    same = {choose(policy, prompt(("system", 16), (f"user {n}", 5), tail=3), idle(), seed=n) for n in range(50)}
    assert same == {ORDER[0]}
    others = {choose(policy, prompt(("system", 15), (f"user {n}", 6)), idle(), seed=n) for n in range(50)}
    assert others == set(IDS)


@pytest.mark.parametrize(
    ("first", "others", "place"),
    [
        (3, 5, 1),  # bound 1.25 * (3 + 5 + 1) / 4 = 2.8125 < 3
        (2, 5, 0),  # bound 1.25 * (2 + 5 + 1) / 4 = 2.5
        (5, 10, 0),  # bound 1.25 * (5 + 10 + 1) / 4 = 5: a load that is equal is within it
        (5, 9, 1),  # bound 1.25 * (5 + 9 + 1) / 4 = 4.6875 < 5
    ],
)
def test_the_bound_to_the_request(first: int, others: int, place: int) -> None:
    policy = make_policy("prefix_hash_bounded")
    loads = {ORDER[0]: first, ORDER[1]: 0, ORDER[2]: 0, ORDER[3]: others}
    replicas = with_load({replica_id: loads[replica_id] for replica_id in IDS})
    assert choose(policy, prompt(("system", 16)), replicas) == ORDER[place]


def test_above_the_bound_the_next_on_the_ring_takes_it_even_where_another_is_idle() -> None:
    policy = make_policy("prefix_hash_bounded")
    loads = {ORDER[0]: 9, ORDER[1]: 2, ORDER[2]: 0, ORDER[3]: 0}  # bound 1.25 * 12 / 4 = 3.75
    replicas = with_load({replica_id: loads[replica_id] for replica_id in IDS})
    assert choose(policy, prompt(("system", 16)), replicas) == ORDER[1]
    reason = policy.choose(prompt(("system", 16)), replicas, 0.0, None).reason  # type: ignore[arg-type]
    assert reason == "place 1 on the ring of the first 256 tokens, load 2 <= 3.75"


def test_a_prompt_without_a_block_goes_by_load() -> None:
    policy = make_policy("prefix_hash_bounded")
    assert choose(policy, prompt(tail=15), with_load({"a": 1, "b": 0, "c": 1})) == "b"


def test_a_short_prompt_is_hashed_whole() -> None:
    policy = make_policy("prefix_hash_bounded")
    expected = next(ring_of(IDS).walk(keys(("short", 2))[-1]))
    assert choose(policy, prompt(("short", 2), tail=5), idle()) == expected
