"""The router without Redis: decisions, reservations, the ladder, and what it says about itself."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from cache.events import BlocksStored
from cache.wire.records import ReplicaLoad, ReplicaRegistration
from router.decision import Outcome
from router.ladder import STALE_AFTER_SECONDS, STALE_BOUND_SECONDS, Rung, rendezvous_choice, rung_of
from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape
from router.prefix_router import NoReplicas, PrefixRouter, RouteRequest
from router.running_set import RunningSet
from tests.router.routers import HASHER, ManualClock, make_router, request, tokens

PROMPT = tokens("prompt", 200)
REPLICAS = ("replica-a", "replica-b", "replica-c")


def fresh(router: PrefixRouter, clock: ManualClock) -> PrefixRouter:
    """As if a follower had just been in step with Redis."""
    router._state.last_synced = clock.now
    return router


def registration_of(replica_id: str, pages_at: str = "127.0.0.1 1 x") -> ReplicaRegistration:
    return ReplicaRegistration(replica_id, "1", HASHER.canary, 16, 1000, 1.0, pages_at, 46_080)


def adopted(router: PrefixRouter, replica_id: str, keys: list[bytes], clock: ManualClock, pages_at: str = "") -> None:
    registration = registration_of(replica_id, pages_at)
    assert router._state.adopt(registration, router._state.load_slot(keys), clock.now)


def test_c28_c32_a_decision_says_what_it_knew() -> None:
    clock = ManualClock()
    router = fresh(make_router(replicas=REPLICAS, clock=clock), clock)
    for replica_id in REPLICAS:
        adopted(router, replica_id, HASHER.keys(PROMPT) if replica_id == "replica-b" else [], clock)
    decision = router.route(request(PROMPT, "one"))
    assert (decision.replica_id, decision.policy, decision.outcome) == ("replica-b", "expected_finish", Outcome.WARM)
    assert (decision.predicted_hit_tokens, decision.reachable_hit_tokens, decision.num_tokens) == (192, 192, 200)
    assert [score.hit_blocks for score in decision.scores] == [0, 12, 0]
    assert min(decision.scores, key=lambda score: score.score or math.inf).replica_id == "replica-b"
    assert "192 of 200 tokens cached" in decision.reason
    assert set(decision.phase_seconds) == {"hash", "lookup", "score", "total"}
    assert router.log.find("one") == replace(decision, block_keys=())
    assert "block_keys" not in decision.to_dict()
    assert decision.to_dict()["outcome"] == "warm"


@pytest.mark.parametrize("gives", [True, False])
def test_a_busy_owners_pages_are_taken_from_it(gives: bool) -> None:
    """Replica b holds the prompt and has a long queue; a is idle, and takes the pages where b gives them."""
    clock = ManualClock()
    router = fresh(make_router(replicas=REPLICAS[:2], clock=clock), clock)
    for replica_id, held in (("replica-a", []), ("replica-b", HASHER.keys(PROMPT))):
        adopted(router, replica_id, held, clock, f"127.0.0.1 {ord(replica_id[-1])} x" if gives else "")
    load = ReplicaLoad(num_running=4, num_waiting=4, queued_prefill_tokens=4000, prefill_tokens_per_second=100.0)
    router._state.on_heartbeat("replica-b", load, clock.now)
    decision = router.route(request(PROMPT, "one"))
    assert (decision.replica_id, decision.predicted_hit_tokens) == ("replica-a", 0)
    if gives:
        assert (decision.pull_from, decision.pull_tokens, decision.pages_at) == ("replica-b", 192, "127.0.0.1 98 x")
        assert decision.to_dict()["pull"] == {"from": "replica-b", "tokens": 192, "seconds": decision.pull_seconds}
        assert decision.prefill_tokens == 8
    else:
        assert (decision.pull_tokens, decision.prefill_tokens) == (0, 200)
        assert "pull" not in decision.to_dict()
    (view,) = (v for v in router._state.views(["replica-a"], [], 16, clock.now, Rung.FRESH))
    assert view.queued_prefill_tokens == decision.prefill_tokens


def test_once_a_hot_prefix_lies_in_both_both_serve_it() -> None:
    """What was pulled counts as work of late, as what was computed does: else the taker would get all that follows."""
    clock = ManualClock()
    router = fresh(make_router(replicas=REPLICAS[:2], clock=clock), clock)
    for replica_id in REPLICAS[:2]:
        adopted(router, replica_id, [], clock, "127.0.0.1 1 x")
    first = router.route(request(PROMPT, "first")).replica_id
    router._state.apply(registration_of(first), [BlocksStored(tuple(HASHER.keys(PROMPT)))], clock.now)
    router.first_token("first")
    router.finish("first")
    sent = Counter(router.route(request([*PROMPT, number], str(number))).replica_id for number in range(10))
    assert min(sent.values()) >= 4


def test_what_a_sibling_is_computing_is_not_taken_from_it() -> None:
    """Predicted blocks are no pages yet: a pull would find nothing."""
    clock = ManualClock()
    router = fresh(make_router(replicas=REPLICAS[:2], clock=clock), clock)
    for replica_id in REPLICAS[:2]:
        adopted(router, replica_id, [], clock, "127.0.0.1 1 x")
    for number in range(4):
        assert not router.route(request(PROMPT, str(number))).pull_tokens


@pytest.mark.parametrize(("length", "hit"), [(15, 0), (16, 0), (17, 16), (32, 16), (33, 32)])
def test_a1_the_last_token_is_never_a_hit(length: int, hit: int) -> None:
    clock = ManualClock()
    router = fresh(make_router(replicas=REPLICAS[:1], clock=clock), clock)
    adopted(router, "replica-a", HASHER.keys(PROMPT), clock)
    decision = router.route(request(PROMPT[:length]))
    assert decision.predicted_hit_tokens == hit
    assert len(decision.block_keys) == length // 16
    assert decision.outcome == (Outcome.WARM if hit else Outcome.UNSCORED)


def test_19_c29_what_cannot_be_hashed_is_routed_and_counted_as_unscored() -> None:
    clock, registry = ManualClock(), CollectorRegistry()
    router = fresh(make_router(replicas=REPLICAS, clock=clock, registry=registry), clock)
    for number, token_ids in enumerate([[-1] * 32, [2**40] * 32, []]):
        decision = router.route(request(token_ids, f"request {number}"))
        assert (decision.outcome, decision.block_keys) == (Outcome.UNSCORED, ())
    labels = {"model": "m", "process": "ingress-1", "policy": "expected_finish", "outcome": "unscored"}
    assert registry.get_sample_value("warmlane_route_decisions_total", labels) == 3


def test_no_replicas_is_an_error_and_not_a_wait() -> None:
    router = make_router(replicas=())
    with pytest.raises(NoReplicas, match="no replica is running"):
        router.route(request(PROMPT))
    router = make_router(replicas=REPLICAS)
    with pytest.raises(NoReplicas, match="excluded"):
        router.route(request(PROMPT), exclude=frozenset(REPLICAS))
    assert router.status()["open_reservations"] == 0


def test_reservations_follow_the_request() -> None:
    router = make_router(replicas=REPLICAS)
    first = router.route(request(PROMPT, "r"))
    second = router.route(request(PROMPT, "r"), exclude=frozenset({first.replica_id}))
    assert second.replica_id != first.replica_id
    assert router.status()["open_reservations"] == 1
    assert in_flight(router) == {second.replica_id: 1}
    router.first_token("r")
    router.first_token("r")
    assert in_flight(router) == {second.replica_id: 1}
    router.finish("r")
    router.finish("r")
    router.first_token("r")
    assert in_flight(router) == {}
    assert router.status()["open_reservations"] == 0


def in_flight(router: PrefixRouter) -> dict[str, int]:
    scores = router.explain(request(tokens("other", 40))).scores
    return {s.replica_id: s.num_running + s.num_waiting for s in scores if s.num_running + s.num_waiting}


def test_a_reservation_that_nobody_ends_ends_with_its_lease() -> None:
    clock = ManualClock()
    router = make_router(replicas=REPLICAS, clock=clock, lease_seconds=60.0)
    router.route(request(PROMPT, "forgotten"))
    clock.now += 61.0
    router.explain(request(PROMPT))
    assert router.status()["open_reservations"] == 0


def test_explain_changes_nothing() -> None:
    registry = CollectorRegistry()
    router = make_router(replicas=REPLICAS, registry=registry)
    first = router.explain(request(PROMPT))
    assert router.explain(request(PROMPT)).predicted_hit_tokens == first.predicted_hit_tokens == 0
    assert router.status()["open_reservations"] == 0
    assert len(router.log) == 0
    labels = {"model": "m", "process": "ingress-1", "policy": "expected_finish", "outcome": "fallback"}
    assert registry.get_sample_value("warmlane_route_decisions_total", labels) is None


def test_an_explanation_says_what_scores_are_made_of_and_a_decision_does_not() -> None:
    clock = ManualClock()
    router = fresh(make_router(replicas=REPLICAS, policy="lmetric", clock=clock), clock)
    scores = router.explain(request(PROMPT)).to_dict()["scores"]
    assert [set(score["parts"]) for score in scores] == [{"new_tokens", "batch"}] * len(REPLICAS)  # type: ignore[attr-defined]
    decision = router.route(request(PROMPT))
    assert all(score.parts is None for score in decision.scores)
    assert "parts" not in decision.to_dict()["scores"][0]  # type: ignore[index]


def test_50_c12_siblings_follow_the_first_before_anything_is_published() -> None:
    clock = ManualClock()
    replicas = (*REPLICAS, "replica-d")
    router = fresh(make_router(replicas=replicas, clock=clock), clock)
    for replica_id in replicas:
        adopted(router, replica_id, [], clock)
    prefix = tokens("cold prefix", 1000)
    chosen = [router.route(request(prefix + tokens(f"tail {n}", 40), f"r{n}")) for n in range(16)]
    computing = {decision.replica_id for decision in chosen if decision.predicted_hit_tokens < 992}
    assert len(computing) <= 2  # of four idle ones
    assert {decision.replica_id for decision in chosen} == computing
    assert [decision.outcome for decision in chosen[:2]] == [Outcome.COLD, Outcome.WARM]


def test_c12_a_prediction_ends_when_the_engine_never_confirms_it() -> None:
    clock = ManualClock()
    router = fresh(make_router(replicas=REPLICAS, clock=clock), clock)
    for replica_id in REPLICAS:
        adopted(router, replica_id, [], clock)
    router.route(request(PROMPT, "r"))
    clock.now += 11.0
    fresh(router, clock)
    assert router.explain(request(PROMPT)).reachable_hit_tokens == 0


def test_a_failed_replica_is_a_last_resort_for_a_while() -> None:
    clock = ManualClock()
    router = fresh(make_router(replicas=REPLICAS[:2], clock=clock), clock)
    adopted(router, "replica-a", HASHER.keys(PROMPT), clock)
    adopted(router, "replica-b", [], clock)
    router.replica_failed("replica-a")
    decision = router.route(request(PROMPT))
    assert (decision.replica_id, decision.reachable_hit_tokens) == ("replica-b", 0)
    assert router.route(request(PROMPT), exclude=frozenset({"replica-b"})).replica_id == "replica-a"


def test_a_replica_that_ray_stops_is_forgotten_with_all_its_blocks() -> None:
    clock, running = ManualClock(), RunningSet()
    running.replace(REPLICAS)
    router = make_router(replicas=running, clock=clock)
    first = router.route(request(PROMPT, "r"))
    running.discard(first.replica_id)
    clock.now += 2.0
    assert router.route(request(PROMPT, "s")).replica_id != first.replica_id
    assert first.replica_id in described(router)  # its reservation is still open
    router.finish("r")
    clock.now += 2.0
    router.explain(request(PROMPT))
    assert first.replica_id not in described(router)


def described(router: PrefixRouter) -> dict[str, object]:
    replicas = router.status()["replicas"]
    assert isinstance(replicas, dict)
    return replicas


class BrokenPolicy(Policy):
    name = "broken"

    def choose(self, request: RequestShape, replicas: list, now: float, rng: random.Random) -> PolicyChoice:  # type: ignore[override, type-arg]
        raise ZeroDivisionError("a bug")


class StrayPolicy(BrokenPolicy):
    def choose(self, request: RequestShape, replicas: list, now: float, rng: random.Random) -> PolicyChoice:  # type: ignore[override, type-arg]
        return PolicyChoice("replica-of-yesterday", "it was good once")


@pytest.mark.parametrize("policy", [BrokenPolicy(), StrayPolicy()])
def test_a_failing_policy_does_not_fail_the_request(policy: Policy) -> None:
    registry = CollectorRegistry()
    router = make_router(replicas=REPLICAS, registry=registry)
    router._policy._policy = policy
    decision = router.route(request(PROMPT))
    assert (decision.outcome, decision.rung) == (Outcome.FALLBACK, Rung.POWER_OF_TWO)
    labels = {"model": "m", "process": "ingress-1", "reason": "policy"}
    assert registry.get_sample_value("warmlane_route_fallbacks_total", labels) == 1


def test_the_rungs_of_the_ladder() -> None:
    assert rung_of(None, 5.0) == Rung.RENDEZVOUS
    assert rung_of(0.0, STALE_AFTER_SECONDS) == Rung.FRESH
    assert rung_of(0.0, STALE_AFTER_SECONDS + 0.01) == Rung.STALE
    assert rung_of(0.0, STALE_BOUND_SECONDS + 0.01) == Rung.RENDEZVOUS


def test_a_mirror_that_is_too_old_does_not_count_but_what_was_sent_does() -> None:
    clock = ManualClock()
    router = fresh(make_router(replicas=REPLICAS, clock=clock), clock)
    for replica_id in REPLICAS:
        adopted(router, replica_id, HASHER.keys(PROMPT) if replica_id == "replica-b" else [], clock)
    clock.now += STALE_BOUND_SECONDS - 1
    stale = router.route(request(PROMPT, "stale"))
    assert (stale.replica_id, stale.predicted_hit_tokens, stale.rung) == ("replica-b", 192, Rung.STALE)
    clock.now += 2
    other = router.route(request(tokens("other", 200), "other"))
    assert (other.outcome, other.rung) == (Outcome.FALLBACK, Rung.RENDEZVOUS)
    sent = router.route(request(PROMPT, "sent"))
    assert (sent.replica_id, sent.outcome, sent.rung) == ("replica-b", Outcome.WARM, Rung.RENDEZVOUS)


def test_without_an_index_routers_agree_by_hashing_and_short_prompts_go_by_load() -> None:
    routers = [make_router(replicas=REPLICAS, process=f"ingress-{n}", seed=n) for n in range(3)]
    chosen = [router.route(request(PROMPT)).replica_id for router in routers]
    assert len(set(chosen)) == 1
    short = routers[0].route(request(PROMPT[:10], "short"))
    assert (short.outcome, short.rung) == (Outcome.FALLBACK, Rung.POWER_OF_TWO)
    session = [
        router.route(RouteRequest("s", tokens(f"t{n}", 5), 5, session_id="x")) for n, router in enumerate(routers)
    ]
    assert len({decision.replica_id for decision in session}) == 1


def test_baselines_that_use_no_index_are_left_alone_without_one() -> None:
    router = make_router(replicas=REPLICAS, policy="round_robin")
    decisions = [router.route(request(PROMPT, f"r{n}")) for n in range(4)]
    assert [d.replica_id for d in decisions] == ["replica-a", "replica-b", "replica-c", "replica-a"]
    assert decisions[0].outcome == Outcome.COLD


def test_rendezvous_moves_only_the_prompts_of_the_replica_that_left() -> None:
    before = [ReplicaView(f"replica-{n}") for n in range(5)]
    after = before[:2] + before[3:]
    prompts = [n.to_bytes(16, "little") for n in range(300)]
    for prompt in prompts:
        was, now = rendezvous_choice(prompt, before), rendezvous_choice(prompt, after)
        assert now == was or was == before[2]
    counts = [sum(rendezvous_choice(prompt, before) == view for prompt in prompts) for view in before]
    assert min(counts) > 30


def test_rendezvous_passes_over_a_loaded_replica() -> None:
    home = rendezvous_choice(b"hot", [ReplicaView(f"replica-{n}") for n in range(4)]).replica_id
    loaded = [ReplicaView(f"replica-{n}", num_running=40 if f"replica-{n}" == home else 8) for n in range(4)]
    assert rendezvous_choice(b"hot", loaded).replica_id != home


def test_the_policy_can_be_changed_while_running() -> None:
    router = make_router(replicas=REPLICAS)
    router.set_policy("expected_finish", {"decode": 0.5})
    assert router.status()["weights"]["decode"] == 0.5  # type: ignore[index]
    router.set_policy("round_robin", {})
    assert router.route(request(PROMPT)).policy == router.policy == "round_robin"


def test_ready_waits_for_the_first_look_at_redis_but_not_for_ever() -> None:
    clock = ManualClock()
    assert make_router(replicas=REPLICAS, clock=clock).ready
    router = make_router("unix:///nowhere/redis.sock", REPLICAS, clock=clock)
    assert not router.ready
    clock.now += 3.1
    assert router.ready
    router.stop()


def test_metrics_have_the_names_of_the_design() -> None:
    registry = CollectorRegistry()
    router = make_router(replicas=REPLICAS, registry=registry)
    router.route(request(PROMPT, "one"))
    router.route(request(PROMPT, "two"))
    base = {"model": "m", "process": "ingress-1"}
    policy = {**base, "policy": "expected_finish"}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"warmlane_{name}", labels)

    assert value("route_decisions_total", **policy, outcome="warm") == 1
    assert value("route_decisions_total", **policy, outcome="fallback") == 1
    assert value("route_predicted_hit_tokens_total", **policy) == 192
    assert value("route_reachable_hit_tokens_total", **policy) == 192
    for phase in ("hash", "lookup", "score", "total"):
        assert value("route_seconds_count", **policy, phase=phase) == 2
    assert value("router_rung", **base) == Rung.RENDEZVOUS
    assert value("index_blocks", **base) == 0
    assert value("index_staleness_seconds", **base) is not None
