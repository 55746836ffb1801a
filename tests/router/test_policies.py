"""What holds for every policy, and what each baseline does."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.load.views import ReplicaView
from router.policies.base import RequestShape
from router.policies.registry import DEFAULT_POLICY, POLICIES, make_policy

SHAPE = RequestShape(num_tokens=1000, max_new_tokens=64)
small, tokens = st.integers(0, 200), st.integers(0, 10**6)
rates = st.floats(0.0, 1e6)
views = st.lists(
    st.builds(
        ReplicaView,
        replica_id=st.integers(0, 50).map(lambda n: f"replica-{n:02}"),
        hit_tokens=st.integers(0, 62).map(lambda blocks: 16 * blocks),
        num_running=small,
        num_waiting=small,
        queued_prefill_tokens=tokens,
        recent_prefill_tokens=st.floats(0.0, 1e6),
        prefill_tokens_per_second=rates,
        decode_step_seconds=st.floats(0.0, 10.0),
        num_blocks=tokens,
        num_active_blocks=tokens,
        answer_seconds=st.floats(0.0, 1e4),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda view: view.replica_id,
).map(lambda found: sorted(found, key=lambda view: view.replica_id))


@pytest.mark.parametrize("name", POLICIES)
@given(replicas=views, seed=st.integers(0, 1000))
def test_every_policy_chooses_a_candidate_and_repeats_itself(name: str, replicas: list[ReplicaView], seed: int) -> None:
    first = make_policy(name).choose(SHAPE, replicas, 0.0, random.Random(seed))
    again = make_policy(name).choose(SHAPE, replicas, 0.0, random.Random(seed))
    assert first == again
    ids = {replica.replica_id for replica in replicas}
    assert first.replica_id in ids
    assert set(first.scores) <= ids
    assert first.reason


@pytest.mark.parametrize("name", ["random", "power_of_two", "least_tokens", "longest_prefix", "expected_finish"])
def test_c6_ties_do_not_go_to_the_first(name: str) -> None:
    policy, rng = make_policy(name), random.Random(1)
    replicas = [ReplicaView(f"replica-{number}") for number in range(4)]
    counts = {replica.replica_id: 0 for replica in replicas}
    for _ in range(400):
        counts[policy.choose(SHAPE, replicas, 0.0, rng).replica_id] += 1
    assert min(counts.values()) > 60


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


def test_expected_finish_scores_are_its_formula() -> None:
    replicas = [
        ReplicaView("a", 480, 2, 1, 300, 100.0, prefill_tokens_per_second=500.0, decode_step_seconds=0.06),
        ReplicaView("b", 0, 0, 0, 0, 0.0, prefill_tokens_per_second=250.0, decode_step_seconds=0.0),
    ]
    scores = make_policy("expected_finish").choose(SHAPE, replicas, 0.0, random.Random(1)).scores
    slope = 0.06 / (2 + 4)
    usual_rate = (500 + 250) / 2
    rate_a, rate_b = (usual_rate * (rate / usual_rate) ** 0.75 for rate in (500, 250))
    delay = (1.0 + 0.85 * 1 + 3.0 * 0.5) / usual_rate  # on average one runs and one half waits
    idle_share = 1 / 2
    decode = 0.3 * 2 * 32 * 3 * slope  # two run, one waits
    assert scores["a"] == pytest.approx((300 + 520 + 100 * idle_share) / rate_a + 520 * delay + decode)
    assert scores["b"] == pytest.approx(1000 / rate_b + 1000 * 1.0 / usual_rate)  # nobody runs or waits there


def test_expected_finish_learns_how_long_answers_are_and_waits_for_memory() -> None:
    known = {"prefill_tokens_per_second": 500.0, "decode_step_seconds": 0.06, "num_blocks": 100, "num_running": 2}
    replicas = [
        ReplicaView("full", num_active_blocks=80, num_waiting=1, answer_seconds=1.2, **known),
        ReplicaView("roomy", num_active_blocks=20, answer_seconds=1.2, **known),
    ]
    scores = make_policy("expected_finish").choose(SHAPE, replicas, 0.0, random.Random(1)).scores
    answer_tokens = 1.2 / 0.06
    decode_for_one = 0.3 * 2 * answer_tokens * 0.06 / (2 + 4)
    first_token_and_delay = 1000 / 500 * (1 + 1 + 0.85 * 2 + 3 * 0.5)
    missing = 80 + 40 + 2 * answer_tokens / 2 / 16 + (1000 + answer_tokens) / 16 - 100
    assert scores["full"] == pytest.approx(first_token_and_delay + 3 * decode_for_one + missing / 80 * 1.2)
    assert scores["roomy"] == pytest.approx(first_token_and_delay + 2 * decode_for_one)


def test_expected_finish_looks_further_ahead_where_nobody_holds_anything() -> None:
    """It may then balance long answers without tearing a talk from its pages."""
    known = {"decode_step_seconds": 0.06, "answer_seconds": 0.06 * 200, "num_running": 2}
    shape = replace(SHAPE, max_new_tokens=500)

    def decode(*hits: int) -> float:
        views = [ReplicaView(f"replica-{n}", hit_tokens=hit, **known) for n, hit in enumerate(hits)]
        return make_policy("expected_finish").score_parts(shape, views)["replica-0"]["decode"]

    for_one_token = 0.3 * 2 * 2 * 0.06 / (2 + 4)
    assert decode(0, 16) == pytest.approx(32 * for_one_token)
    assert decode(0, 0) == pytest.approx(64 * for_one_token)


def test_expected_finish_does_not_believe_one_odd_measurement() -> None:
    rates = [400.0, 410.0, 0.001]
    replicas = [ReplicaView(f"replica-{n}", prefill_tokens_per_second=rate) for n, rate in enumerate(rates)]
    scores = make_policy("expected_finish").choose(SHAPE, replicas, 0.0, random.Random(1)).scores
    slower = 4**0.75  # at most four times off the usual one, of which three quarters are believed
    assert scores["replica-2"] == pytest.approx(scores["replica-0"] + (slower - 1) * 1000 / 400)


def test_weights_are_data_and_checked() -> None:
    replicas = [ReplicaView("a", hit_tokens=960), ReplicaView("b", num_running=0)]
    busy = [ReplicaView("a", hit_tokens=960, num_running=8, decode_step_seconds=0.2), replicas[1]]
    rng = random.Random(1)
    assert make_policy("expected_finish").choose(SHAPE, busy, 0.0, rng).replica_id == "b"
    assert make_policy("expected_finish", {"decode": 0.0}).choose(SHAPE, busy, 0.0, rng).replica_id == "a"
    with pytest.raises(ValueError, match="no weight 'decod'"):
        make_policy("expected_finish", {"decod": 1.0})
    with pytest.raises(ValueError, match="decode"):
        make_policy("expected_finish", {"decode": float("nan")})
    with pytest.raises(ValueError, match="no weight"):
        make_policy("random", {"decode": 1.0})
    with pytest.raises(ValueError, match="policy must be one of"):
        make_policy("fastest")
    assert DEFAULT_POLICY in POLICIES
