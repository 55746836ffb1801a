"""What holds for every policy, and which of them keep the promises that the reported faults ask for."""

import math
import random
from dataclasses import replace

import pytest

from cache.wire.fields import MAX_MEASURE
from router.load.views import ReplicaView
from router.policies.base import MAX_WEIGHT, Policy
from router.policies.preble import MAX_REQUESTS
from router.policies.registry import POLICIES, make_policy
from router.policies.sent_prefixes import FORGET_SECONDS, MAX_BLOCKS, SentPrefixPolicy
from tests.router.fleet import Fleet
from tests.router.fleet import prompt as tokens
from tests.router.policies.shapes import IDS, choose, idle, keys, prompt, send, shares, with_hits, with_load

GOES_BY_CHANCE_OR_TURN = {"random", "round_robin"}
STICKS_BLINDLY = {"longest_prefix", "ray_prefix_affinity"}
BLIND_TO_LOAD = {*GOES_BY_CHANCE_OR_TURN, "session_hash", *STICKS_BLINDLY}
TREES = [name for name, policy in POLICIES.items() if issubclass(policy, SentPrefixPolicy)]


def mixed_traffic(policy: Policy, seed: int, count: int = 120) -> list[str]:
    """Shared heads, sessions and strangers over replicas whose load changes."""
    rng, sent = random.Random(seed), []
    for number in range(count):
        parts = [(f"system {rng.randrange(3)}", rng.randrange(1, 12)), (f"user {rng.randrange(20)}", rng.randrange(6))]
        replicas = [
            ReplicaView(
                replica_id,
                hit_tokens=16 * rng.randrange(4),
                num_running=rng.randrange(50),
                num_waiting=rng.randrange(5),
                queued_prefill_tokens=rng.randrange(3000),
                num_blocks=1000,
                num_active_blocks=rng.randrange(1000),
            )
            for replica_id in sorted(rng.sample(IDS, rng.randint(1, 4)))
        ]
        request = prompt(*parts, tail=rng.randrange(16), session=rng.choice([None, f"session {number % 7}"]))
        sent.append(send(policy, request, replicas, now=number * 0.5, rng=rng))
        assert sent[-1] in {replica.replica_id for replica in replicas}
    return sent


@pytest.mark.parametrize("name", POLICIES)
def test_equal_seeds_give_equal_decisions_within_the_candidates(name: str) -> None:
    for seed in range(5):
        assert mixed_traffic(make_policy(name), seed) == mixed_traffic(make_policy(name), seed)


@pytest.mark.parametrize("name", POLICIES)
def test_one_replica_gets_everything(name: str) -> None:
    policy = make_policy(name)
    for request in (prompt(("system", 9), tail=3), prompt(tail=1), prompt(("system", 9), session="s")):
        for replica in (ReplicaView("a"), ReplicaView("a", 96, 300, 300, 10**6, 1e6, 5.0, 1.0, 10, 10)):
            assert send(policy, request, [replica]) == "a"


@pytest.mark.parametrize("name", POLICIES)
def test_scores_are_finite_whatever_is_measured_and_weighted(name: str) -> None:
    """Weights at their bounds, and loads at the bounds of what the codec takes."""
    rng = random.Random(3)
    for number in range(400):
        weights = {weight: rng.choice([0.0, 1e-9, 1.0, MAX_WEIGHT]) for weight in POLICIES[name].default_weights}
        policy = make_policy(name, weights if number % 4 else None)
        replicas = [extreme(replica_id, rng) for replica_id in IDS[: rng.randint(1, 4)]]
        choice = policy.choose(prompt(("system", 9), tail=3), replicas, float(number), rng)
        ids = {replica.replica_id for replica in replicas}
        assert choice.replica_id in ids
        assert set(choice.scores) <= ids
        assert choice.reason
        assert all(map(math.isfinite, choice.scores.values())), (weights, replicas)
        policy.on_sent(prompt(("system", 9), tail=3), choice.replica_id, replicas, float(number))


def extreme(replica_id: str, rng: random.Random) -> ReplicaView:
    def one(highest: int) -> int:
        return rng.choice([0, 1, highest])

    def measure() -> float:
        return rng.choice([0.0, 5e-324, 1e-9, 1.0, MAX_MEASURE])

    return ReplicaView(
        replica_id,
        hit_tokens=rng.choice([0, 144]),
        num_running=one(2**33),
        num_waiting=one(2**33),
        queued_prefill_tokens=one(2**65),
        recent_prefill_tokens=measure(),
        prefill_tokens_per_second=measure(),
        decode_step_seconds=measure(),
        num_blocks=one(2**64),
        num_active_blocks=one(2**64),
        answer_seconds=measure(),
    )


@pytest.mark.parametrize("name", POLICIES)
def test_asking_changes_nothing(name: str) -> None:
    """`choose` decides, `on_sent` remembers."""
    asked, sent = make_policy(name), make_policy(name)
    rng, replicas = random.Random(7), idle()
    for number in range(60):
        request = prompt(("system", 6), (f"user {number % 9}", 4))
        for seed in range(3):
            choose(asked, prompt((f"question {seed}", 5)), with_load({"a": seed, "b": 1}), now=float(number))
        state = rng.getstate()
        first = send(asked, request, replicas, now=float(number), rng=rng)
        rng.setstate(state)
        assert send(sent, request, replicas, now=float(number), rng=rng) == first


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "round_robin"])
def test_c6_ties_do_not_go_to_the_first(name: str) -> None:
    counts = shares(make_policy(name), prompt(tail=12), idle())
    assert min(counts[replica_id] for replica_id in IDS) > 60


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in BLIND_TO_LOAD | {"preble"}])
def test_c1_a_miss_does_not_go_to_a_saturated_replica(name: str) -> None:
    """Whatever it holds or does not hold. Preble goes by what it sent there itself; see its own tests."""
    policy, rng = make_policy(name), random.Random(1)
    saturated = ReplicaView("a", 0, 40, 40, 40_000, num_blocks=100, num_active_blocks=100)
    replicas = [saturated, *(ReplicaView(r, num_running=1, num_blocks=100) for r in "bcd")]
    for replica_id in "bcd":
        policy.on_sent(prompt((f"busy tree {replica_id}", 30)), replica_id, replicas, 0.0)
    chosen = {policy.choose(prompt((f"stranger {n}", 6)), replicas, 0.0, rng).replica_id for n in range(100)}
    assert "a" not in chosen


@pytest.mark.parametrize(
    "name", ["longest_prefix", "dynamo_cost", "lmetric", "preble", "llmd_weighted", "expected_finish"]
)
def test_c2_one_hot_worker_does_not_switch_affinity_off_for_all(name: str) -> None:
    policy, rng = make_policy(name), random.Random(1)
    hot = ReplicaView("a", 0, 40, 40, 40_000, num_blocks=100, num_active_blocks=100)
    replicas = with_hits([hot, *(ReplicaView(r, num_running=1, num_blocks=100) for r in "bcd")], c=608)
    assert {policy.choose(prompt(("system", 40)), replicas, 0.0, rng).replica_id for _ in range(50)} == {"c"}


@pytest.mark.parametrize("name", ["dynamo_cost", "lmetric", "llmd_weighted", "expected_finish"])
def test_c3_c10_of_two_holders_the_less_loaded(name: str) -> None:
    busy = ReplicaView("a", 608, 12, 6, 5000, num_blocks=100, num_active_blocks=90)
    calm = busy._replace(replica_id="b", num_running=2, num_waiting=0, queued_prefill_tokens=0, num_active_blocks=20)
    replicas = [busy, calm, ReplicaView("c", num_running=2, num_blocks=100, num_active_blocks=20)]
    assert choose(make_policy(name), prompt(("system", 40)), replicas) == "b"


MOST = 2**64 - 1
ABSURD = [
    ReplicaView("x", 0, 2**32 - 1, 2**32 - 1, MOST, num_blocks=MOST, num_active_blocks=MOST),
    ReplicaView("x", 0, 1, 1, MOST, prefill_tokens_per_second=5e-324, decode_step_seconds=1e308, num_blocks=1),
    ReplicaView("x", 0, 0, 0, 0, prefill_tokens_per_second=1.7e308, decode_step_seconds=5e-324, num_blocks=1),
]


@pytest.mark.parametrize("name", ["longest_prefix", "dynamo_cost", "lmetric", "llmd_weighted", "expected_finish"])
@pytest.mark.parametrize("absurd", ABSURD)
def test_58_what_one_replica_says_of_itself_breaks_no_choice(name: str, absurd: ReplicaView) -> None:
    """The most that a heartbeat can hold shuts the others out of no policy that goes by what replicas say."""
    policy, rng = make_policy(name), random.Random(1)
    sane = [ReplicaView(r, 0, 1, 0, 0, 0.0, 400.0, 0.05, num_blocks=100, num_active_blocks=20) for r in "abc"]
    for number in range(50):
        replicas = with_hits([*sane, absurd], c=608)
        request = prompt(("system", 40), (f"user {number}", 2))
        choice = policy.choose(request, replicas, float(number), rng)
        policy.on_sent(request, choice.replica_id, replicas, float(number))
        assert not any(math.isnan(score) for score in choice.scores.values())
        assert choice.replica_id == "c"


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"random"}))
def test_c8_traffic_without_reuse_is_balanced(name: str) -> None:
    fleet = Fleet(5, name)
    for number in range(300):
        chat = tokens((f"unique {number}", 300))
        fleet.at(number * 0.3, lambda chat=chat: fleet.send(chat))
    fleet.run()
    assert max(fleet.counts()) / min(fleet.counts()) <= 1.3
    assert all(decision.predicted_hit_tokens == 0 for decision in fleet.decisions)


@pytest.mark.parametrize("name", TREES)
def test_c18_what_was_sent_to_a_failed_replica_is_forgotten(name: str) -> None:
    policy = make_policy(name)
    assert isinstance(policy, SentPrefixPolicy)
    send(policy, prompt(("system", 10)), idle(), to="b")
    policy.forget("b")
    assert (policy.sent.depth("b", keys(("system", 10))), len(policy.sent)) == (0, 0)


@pytest.mark.parametrize("name", TREES)
def test_c18_what_was_sent_to_a_replica_that_is_gone_is_forgotten(name: str) -> None:
    policy = make_policy(name)
    assert isinstance(policy, SentPrefixPolicy)
    send(policy, prompt(("system", 10)), idle(), to="b")
    others = idle("a", "c", "d")
    assert send(policy, prompt(("system", 10)), others, now=1.0) != "b"
    assert policy.sent.num_blocks("b") == 10  # passed over for one request only, for all we know
    for now in (FORGET_SECONDS * 0.9, FORGET_SECONDS * 1.2):
        send(policy, prompt(("other", 1)), others, now=now)
    assert policy.sent.num_blocks("b") == 0


@pytest.mark.parametrize("name", POLICIES)
def test_c22_45_memory_is_bounded_under_50_000_distinct_prompts(name: str) -> None:
    policy, replicas, rng = make_policy(name), idle(), random.Random(1)
    for number in range(50_000):
        request = replace(prompt(), num_tokens=256, block_keys=[b"%8d %7d" % (number, block) for block in range(16)])
        send(policy, request, replicas, to=rng.choice(IDS), now=number * 0.01)
    held = {name: value for name, value in vars(policy).items() if hasattr(value, "__len__") and name != "weights"}
    bounds = {"sent": MAX_BLOCKS, "_window": MAX_REQUESTS, "_arrivals": 8 * 1000, "_last": 64}
    for field, value in held.items():
        assert len(value) <= bounds[field], field
    if name in TREES:
        assert len(held["sent"]) > 0.9 * MAX_BLOCKS  # the bound is what stopped it
