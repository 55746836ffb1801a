"""The simulated fleet: deterministic, complete, and telling routers no more than they would know."""

import itertools
from dataclasses import replace

import pytest

from cluster.lab.arrival_plan import ClosedLoop
from cluster.lab.fleet import Fleet, FleetResult
from cluster.lab.fleet_config import FleetConfig
from cluster.lab.scenario import lab_hasher
from tests.cluster.lab.workloads import COSTS, sessions, simulate, unique_prompts

NOISY = FleetConfig(num_replicas=3, num_blocks=160, step_noise=0.2, num_slow_replicas=1)


def hits(result: FleetResult) -> int:
    return sum(outcome.hit_tokens for outcome in result.outcomes)


@pytest.mark.parametrize("policy", ["expected_finish", "power_of_two"])
def test_the_same_seed_gives_the_same_result_to_the_byte(policy: str) -> None:
    trace = sessions()
    assert repr(simulate(trace, NOISY, policy)) == repr(simulate(trace, NOISY, policy))


def test_another_seed_gives_another_result() -> None:
    assert simulate(sessions(), NOISY, seed=1).outcomes != simulate(sessions(), NOISY, seed=2).outcomes


@pytest.mark.parametrize(
    "config",
    [
        FleetConfig(num_replicas=3, num_blocks=400),
        NOISY,
        replace(NOISY, num_blocks=60, max_num_seqs=8),  # preemptions and a full batch
        replace(NOISY, num_routers=2, event_loss=0.1),
        replace(NOISY, max_num_batched_tokens=64),  # chunks
    ],
)
def test_leaping_over_quiet_decode_steps_changes_nothing(config: FleetConfig) -> None:
    trace = sessions(answer_tokens=70)
    leaping, stepping = simulate(trace, config), simulate(trace, replace(config, jump=False))
    assert repr(leaping) == repr(stepping)
    assert leaping.num_steps > len(trace.requests)


def test_the_small_pool_of_the_test_above_does_preempt() -> None:
    config = replace(NOISY, num_blocks=60, max_num_seqs=8)
    assert simulate(sessions(answer_tokens=70), config).num_preemptions > 0


def test_each_request_ends_once_and_its_moments_are_in_order() -> None:
    trace = sessions()
    result = simulate(trace, NOISY)
    assert [outcome.number for outcome in result.outcomes] == list(range(len(trace.requests)))
    for outcome in result.outcomes:
        moments = [
            outcome.arrived_at,
            outcome.queued_at,
            outcome.admitted_at,
            outcome.first_token_at,
            outcome.finished_at,
        ]
        assert moments == sorted(moments)
        assert outcome.hit_tokens < outcome.num_prompt_tokens


def test_hit_and_computed_tokens_make_up_all_prompts() -> None:
    trace = sessions()
    result = simulate(trace, FleetConfig(num_replicas=3, num_blocks=4000))
    assert result.num_preemptions == 0
    assert hits(result) + sum(result.computed_tokens) == trace.num_prompt_tokens


def test_one_request_alone_takes_what_the_cost_model_says() -> None:
    config = FleetConfig(num_replicas=1, transit_seconds=0.25, max_num_batched_tokens=512)
    (outcome,) = simulate(unique_prompts(1, 100, new_tokens=3), config, times=[1.0]).outcomes
    prefill = 0.01 + 100 * 0.001
    decodes = sum(0.01 + 0.002 + context * 1e-6 for context in (101, 102))
    assert outcome.ttft_seconds == pytest.approx(0.5 + prefill)
    assert outcome.total_seconds == pytest.approx(0.5 + prefill + decodes)
    assert outcome.queue_seconds == 0.0


def test_a_slow_replica_takes_longer() -> None:
    trace = unique_prompts(1, 100)
    config = FleetConfig(num_replicas=1, transit_seconds=0.0)
    (usual,) = simulate(trace, config, times=[0.0]).outcomes
    (slow,) = simulate(trace, replace(config, num_slow_replicas=1, slowness=1.3), times=[0.0]).outcomes
    assert slow.total_seconds == pytest.approx(1.3 * usual.total_seconds)


def test_the_later_the_events_come_the_less_is_known() -> None:
    """Predictions bridge ten seconds; beyond, a router that hears nothing takes warm replicas for cold ones."""
    trace = sessions()
    config = FleetConfig(num_replicas=4, num_blocks=4000)
    times = [3.0 * number for number in range(len(trace.requests))]
    prompt, late = (
        hits(simulate(trace, replace(config, index_delay_seconds=delay), times=times)) for delay in (0.05, 300.0)
    )
    assert late < 0.9 * prompt


def test_lost_events_are_found_and_repaired() -> None:
    trace = sessions()
    config = FleetConfig(num_replicas=3, num_blocks=160)
    whole, lossy = simulate(trace, config), simulate(trace, replace(config, event_loss=0.2))
    assert whole.num_resyncs == 0
    assert lossy.num_resyncs > 0
    assert hits(lossy) > 0.8 * hits(whole)


def test_several_routers_hear_of_each_other() -> None:
    """Four routers reach nearly the hits of one (C25), and a burst does not fall on one replica (C9)."""
    trace = sessions(240)
    config = FleetConfig(num_replicas=4, num_blocks=4000)
    one, four = simulate(trace, config), simulate(trace, replace(config, num_routers=4))
    assert hits(four) >= 0.95 * hits(one)
    burst = simulate(unique_prompts(64, 64), replace(config, num_routers=4), times=[0.02 * n for n in range(64)])
    counts = [sum(outcome.replica == number for outcome in burst.outcomes) for number in range(4)]
    assert max(counts) <= 2 * min(counts)


def test_a_request_that_no_replica_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="the longest request has 104 tokens, a replica holds 64"):
        simulate(unique_prompts(1, 100), FleetConfig(num_blocks=4))


def test_a_hasher_of_another_block_size_is_refused() -> None:
    with pytest.raises(ValueError, match="blocks have 32 tokens, not 16"):
        Fleet(FleetConfig(), COSTS, lab_hasher(32), "random")


def test_a_closed_loop_never_has_more_under_way_than_users() -> None:
    trace = sessions()
    config = FleetConfig(num_replicas=2, num_blocks=2000)
    result = Fleet(config, COSTS, lab_hasher(16), "round_robin").run(trace, ClosedLoop(trace, 5))
    assert len(result.outcomes) == len(trace.requests)
    edges = sorted([(o.arrived_at, 1) for o in result.outcomes] + [(o.finished_at, -1) for o in result.outcomes])
    under_way, most = 0, 0
    for _, change in edges:
        under_way += change
        most = max(most, under_way)
    assert most == 5
    by_session: dict[str, list[tuple[float, float]]] = {}
    for outcome in result.outcomes:
        session = trace.requests[outcome.number].session
        by_session.setdefault(session, []).append((outcome.arrived_at, outcome.finished_at))
    for turns in by_session.values():
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(turns))
