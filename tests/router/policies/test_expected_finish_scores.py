"""The default policy's formula, and single decisions in which it was once too coarse."""

import random
from dataclasses import replace

import pytest

from router.load.views import ReplicaView
from router.policies.base import RequestShape
from router.policies.registry import make_policy
from tests.router.policies.shapes import prompt, shares

POLICY = make_policy("expected_finish")
SHAPE = RequestShape(num_tokens=1000, max_new_tokens=64)


def test_scores_are_its_formula() -> None:
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


def test_learns_how_long_answers_are_and_waits_for_memory() -> None:
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


def test_looks_further_ahead_where_nobody_holds_anything() -> None:
    """It may then balance long answers without tearing a talk from its pages."""
    known = {"decode_step_seconds": 0.06, "answer_seconds": 0.06 * 200, "num_running": 2}
    shape = replace(SHAPE, max_new_tokens=500)

    def decode(*hits: int) -> float:
        views = [ReplicaView(f"replica-{n}", hit_tokens=hit, **known) for n, hit in enumerate(hits)]
        return make_policy("expected_finish").score_parts(shape, views)["replica-0"]["decode"]

    for_one_token = 0.3 * 2 * 2 * 0.06 / (2 + 4)
    assert decode(0, 16) == pytest.approx(32 * for_one_token)
    assert decode(0, 0) == pytest.approx(64 * for_one_token)


def test_does_not_believe_one_odd_measurement() -> None:
    rates = [400.0, 410.0, 0.001]
    replicas = [ReplicaView(f"replica-{n}", prefill_tokens_per_second=rate) for n, rate in enumerate(rates)]
    scores = make_policy("expected_finish").choose(SHAPE, replicas, 0.0, random.Random(1)).scores
    slower = 4**0.75  # at most four times off the usual one, of which three quarters are believed
    assert scores["replica-2"] == pytest.approx(scores["replica-0"] + (slower - 1) * 1000 / 400)


def test_weights_are_data() -> None:
    busy = [ReplicaView("a", hit_tokens=960, num_running=8, decode_step_seconds=0.2), ReplicaView("b", num_running=0)]
    rng = random.Random(1)
    assert make_policy("expected_finish").choose(SHAPE, busy, 0.0, rng).replica_id == "b"
    assert make_policy("expected_finish", {"decode": 0.0}).choose(SHAPE, busy, 0.0, rng).replica_id == "a"


def busy(replica_id: str, running: int = 8, **fields: float) -> ReplicaView:
    return ReplicaView(
        replica_id,
        num_running=running,
        **{"prefill_tokens_per_second": 400.0, "decode_step_seconds": 0.1, **fields},  # type: ignore[arg-type]
    )


def test_a_queue_is_not_hidden_by_what_is_the_same_everywhere() -> None:
    """8 s of prefill, and delay for others many times that on each replica: 1.5 s of queue count all the same."""
    queued = busy("a", num_waiting=1, queued_prefill_tokens=600, running=7)
    fleet = [queued, busy("b", num_waiting=1), busy("c", num_waiting=1), busy("d", num_waiting=1)]
    assert shares(POLICY, prompt(tail=3200), fleet)["a"] == 0


def test_a_long_prompt_under_way_is_not_little_to_do() -> None:
    """One request with a long prompt against eight that only decode: a cold prompt does not queue behind it."""
    fleet = [busy("a", running=1, queued_prefill_tokens=2000), *(busy(name) for name in "bcd")]
    assert shares(POLICY, prompt(tail=2000), fleet)["a"] == 0


def test_who_waits_will_decode_beside_it() -> None:
    """No prefill is queued anywhere: ten that run are less than eight that run and eight that wait."""
    fleet = [busy("a", num_waiting=8), busy("b", running=10), busy("c", num_waiting=8), busy("d", num_waiting=8)]
    assert set(shares(POLICY, prompt(tail=40), fleet)) == {"b"}


def test_long_answers_do_not_tear_a_talk_from_its_pages() -> None:
    """Answers of 1,000 tokens: two more that decode beside it cost less than computing 300 tokens again."""
    fleet = [busy(name, answer_seconds=100.0) for name in "abcd"]
    fleet[0] = fleet[0]._replace(hit_tokens=304, num_running=10)
    assert set(shares(POLICY, prompt(("talk", 20), tail=8, new_tokens=1000), fleet)) == {"a"}


def test_a_pull_counts_where_it_is_cheaper_than_computing() -> None:
    """`owner` has a queue, `taker` has nothing to do; what is pulled is neither computed nor does it delay anybody."""
    owner = ReplicaView("owner", 960, 3, 4, 2000, prefill_tokens_per_second=500.0)
    taker = ReplicaView("taker", prefill_tokens_per_second=500.0, pull_from="owner", pull_tokens=960, pull_seconds=0.1)
    choice = POLICY.choose(SHAPE, [owner, taker], 0.0, random.Random(1))
    assert (choice.replica_id, choice.pulls) == ("taker", True)
    assert choice.reason.endswith("960 from owner")
    parts = POLICY.score_parts(SHAPE, [owner, taker])["taker"]
    assert (parts["prefill"], parts["pull"]) == (pytest.approx(40 / 500), 0.1)
    assert parts["delay"] == pytest.approx(40 / 500)


def test_a_pull_that_takes_longer_than_computing_is_left() -> None:
    slow = ReplicaView("slow", prefill_tokens_per_second=500.0, pull_from="owner", pull_tokens=960, pull_seconds=60.0)
    alone = slow._replace(pull_from="", pull_tokens=0, pull_seconds=0.0)
    with_it, without = (POLICY.choose(SHAPE, [view], 0.0, random.Random(1)) for view in (slow, alone))
    assert not with_it.pulls
    assert with_it.scores == without.scores


def test_among_idle_replicas_the_warm_one_is_taken_and_nothing_is_copied() -> None:
    warm = ReplicaView("warm", 960, prefill_tokens_per_second=500.0)
    cold = ReplicaView("cold", prefill_tokens_per_second=500.0, pull_from="warm", pull_tokens=960, pull_seconds=0.02)
    choice = POLICY.choose(SHAPE, [cold, warm], 0.0, random.Random(1))
    assert (choice.replica_id, choice.pulls) == ("warm", False)


def test_what_lies_in_a_colder_tier_is_a_hit_that_costs_its_restoring() -> None:
    warm = ReplicaView("warm", 960, prefill_tokens_per_second=500.0)
    on_disk = warm._replace(replica_id="on disk", disk_tokens=960, restore_seconds=0.2)
    cold = ReplicaView("cold", prefill_tokens_per_second=500.0)
    assert POLICY.choose(SHAPE, [cold, on_disk], 0.0, random.Random(1)).replica_id == "on disk"
    assert POLICY.choose(SHAPE, [on_disk, warm], 0.0, random.Random(1)).replica_id == "warm"
    parts = POLICY.score_parts(SHAPE, [on_disk, warm, cold])
    assert (parts["on disk"]["restore"], parts["warm"]["restore"]) == (0.2, 0.0)
    assert sum(parts["on disk"].values()) == pytest.approx(sum(parts["warm"].values()) + 0.2)


def test_a_pull_into_a_full_cache_counts_like_computing_and_is_done_all_the_same() -> None:
    """So a full fleet shares out prompts as it does without pulls."""
    roomy = ReplicaView("b", prefill_tokens_per_second=500.0, pull_from="a", pull_tokens=960, pull_seconds=0.1)
    full = roomy._replace(pull_evicts=1.0)
    computing = roomy._replace(pull_from="", pull_tokens=0, pull_seconds=0.0)
    found = {name: POLICY.choose(SHAPE, [view], 0.0, random.Random(1)) for name, view in
             (("roomy", roomy), ("full", full), ("computing", computing))}  # fmt: skip
    assert found["full"].pulls
    assert found["full"].scores["b"] == pytest.approx(found["computing"].scores["b"])
    assert found["roomy"].scores["b"] < found["full"].scores["b"]


def test_what_a_giver_will_have_evicted_by_then_is_not_counted_on() -> None:
    queue = {"num_waiting": 2, "queued_prefill_tokens": 5000, "prefill_tokens_per_second": 500.0}
    view = ReplicaView("b", pull_from="a", pull_tokens=960, pull_seconds=0.1, pull_lasts=20.0, **queue)
    parts = POLICY.score_parts(SHAPE, [view])["b"]
    assert parts["prefill"] == pytest.approx((1000 - 960 * (1 - 10 / 20)) / 500)
