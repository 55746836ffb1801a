"""Routers and replicas around one real Redis: what one publishes the others know, whatever happens to the server."""

import time
from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from cache.block_hasher import BlockHasher, ExtraKeys
from cache.events import BlocksRemoved, BlocksStored, CacheCleared
from cache.wire import records as wire
from cache.wire.redis_keys import TOMBSTONE
from router.decision import Outcome
from router.ladder import Rung
from router.prefix_router import PrefixRouter, RouteRequest
from tests.router.routers import HASHER, KEYS, request, tokens
from tests.router.world import World, described, expect_mirrored, mirrored, value
from tests.waiting import wait_until

PROMPT = tokens("prompt", 200)


def test_a_published_prompt_is_predicted_warm(up: World) -> None:
    replicas = [up.replica("replica-a"), up.replica("replica-b")]
    router = up.router()
    replicas[1].compute(PROMPT)
    expect_mirrored(router, *replicas)
    decision = router.route(request(PROMPT))
    assert (decision.replica_id, decision.outcome, decision.rung) == ("replica-b", Outcome.WARM, Rung.FRESH)
    assert decision.predicted_hit_tokens == decision.reachable_hit_tokens == 192
    assert {score.replica_id: score.hit_blocks for score in decision.scores} == {"replica-a": 0, "replica-b": 12}
    assert decision.block_keys == tuple(HASHER.keys(PROMPT))


def test_stored_removed_cleared_are_followed(up: World) -> None:
    replica, router = up.replica(), up.router()
    replica.compute(PROMPT)
    expect_mirrored(router, replica)
    gone = HASHER.keys(PROMPT)[5]
    replica.publisher.publish([BlocksRemoved((gone,))])
    replica.held.discard(gone)
    expect_mirrored(router, replica)
    assert router.explain(request(PROMPT)).predicted_hit_tokens == 80
    replica.publisher.publish([CacheCleared()])
    replica.held.clear()
    expect_mirrored(router, replica)
    replica.compute(PROMPT[:40])
    expect_mirrored(router, replica)


def test_where_the_blocks_lie_is_followed_and_told_to_who_comes_later(up: World) -> None:
    replica, router = up.replica(), up.router()
    replica.compute(PROMPT)
    keys = tuple(HASHER.keys(PROMPT))
    replica.publisher.publish([BlocksStored(keys[:3], "host"), BlocksStored(keys[3:8], "disk")])
    replica.publisher.publish([BlocksStored(keys[:1])])

    def score(router: PrefixRouter) -> tuple[int, int, int]:
        (found,) = router.explain(request(PROMPT)).scores
        return found.hit_blocks, found.host_blocks, found.disk_blocks

    wait_until(lambda: score(router) == (12, 2, 5), "the tiers are known")
    assert router.explain(request(PROMPT)).scores[0].restore_seconds > 0
    late = up.router("ingress-late")
    wait_until(lambda: score(late) == (12, 2, 5), "the snapshot tells them too")
    replica.publisher.publish([BlocksStored(keys)])
    wait_until(lambda: score(router) == score(late) == (12, 0, 0), "all is back on the device")


def test_after_a_reset_no_router_expects_what_was_on_its_way_before_it(up: World) -> None:
    replica = up.replica()
    routers = up.router("ingress-1"), up.router("ingress-2")
    for router in routers:
        expect_mirrored(router, replica)
    before = tokens("before", 608)
    after: list[list[int]] = []
    routers[0].route(request(before, "before"))
    replica.publisher.publish([CacheCleared()])
    for router in routers:
        router.forget_cached()

    def told() -> bool:
        """Blocks on their way are told for half a second alone, in which a busy machine may not come to read them."""
        after.append(tokens(f"after {len(after)}", 608))
        routers[0].route(request(after[-1], f"after {len(after)}"))
        return any(routers[1].explain(request(prompt)).predicted_hit_tokens for prompt in after)

    wait_until(told, "the other router is told")
    assert [router.explain(request(before)).predicted_hit_tokens for router in routers] == [0, 0]


def test_c14_c17_a_late_router_loads_snapshots_before_it_is_ready(up: World) -> None:
    replicas = [up.replica(f"replica-{name}") for name in "abc"]
    for number in range(30):
        replicas[number % 3].compute(tokens(f"prompt {number}", 160))
    first = up.router("ingress-1")
    expect_mirrored(first, *replicas)
    late = up.router("ingress-2")
    wait_until(lambda: late.ready, "ready")
    for replica in replicas:
        assert mirrored(late, replica)
    replicas[0].compute(PROMPT)
    expect_mirrored(late, *replicas)


def test_59_two_routers_agree(up: World) -> None:
    replicas = [up.replica(f"replica-{name}") for name in "abc"]
    routers = [up.router("ingress-1", seed=1), up.router("ingress-2", seed=2)]
    replicas[1].compute(PROMPT)
    for router in routers:
        expect_mirrored(router, *replicas)
    for number in range(6):
        decision = routers[number % 2].route(request(PROMPT, f"request {number}"))
        assert (decision.replica_id, decision.predicted_hit_tokens) == ("replica-b", 192)
        routers[number % 2].finish(f"request {number}")


def test_c9_a_router_sees_what_another_one_just_sent(up: World) -> None:
    up.replica("replica-a")
    up.replica("replica-b")
    one, other = up.router("ingress-1", policy="least_tokens"), up.router("ingress-2", policy="least_tokens")
    for router in (one, other):
        wait_until(lambda router=router: all(r["registered"] for r in described(router).values()), "joined")
        wait_until(lambda router=router: len(described(router)) == 2, "joined")

    prompts = count()

    def other_goes_elsewhere() -> bool:
        """The fake engines report no load at all, so a reservation counts only until the next heartbeat."""
        one.finish("held")
        sent_to = one.route(request(tokens(f"long {next(prompts)}", 4000), "held")).replica_id
        decision = other.explain(request(PROMPT))
        queued = {score.replica_id: score.queued_prefill_tokens for score in decision.scores}
        return queued[sent_to] >= 4000 and decision.replica_id != sent_to

    wait_until(other_goes_elsewhere, "the other router's reservation is part of the load")


def test_c25_a_router_expects_the_blocks_that_another_one_sent_for(up: World) -> None:
    """Nothing is computed here, so only the other router's reservation can tell."""
    for name in "abc":
        up.replica(f"replica-{name}")
    one, other = up.router("ingress-1", seed=1), up.router("ingress-2", seed=2)
    for router in (one, other):
        wait_until(lambda router=router: len(described(router)) == 3, "joined")
        wait_until(lambda router=router: all(r["registered"] for r in described(router).values()), "joined")
    sent_to = one.route(request(PROMPT, "first")).replica_id

    def sibling_goes_there() -> bool:
        decision = other.explain(request([*PROMPT, *tokens("tail", 20)]))
        return (decision.replica_id, decision.predicted_hit_tokens) == (sent_to, 192)

    wait_until(sibling_goes_there, "the other router knows where the prompt is being computed")


def test_c21_a_gap_loads_the_snapshot_again(up: World) -> None:
    registry = CollectorRegistry()
    replica, router = up.replica(), up.router(registry=registry)
    replica.compute(PROMPT)
    expect_mirrored(router, replica)
    publisher = replica.publisher
    with up.server.client() as client:  # a foreign hand writes a later batch: the next real ones are refused by Redis
        batch = wire.EventBatch(publisher.last_seq + 7, (BlocksStored(tuple(HASHER.keys(tokens("ghost", 64)))),))
        client.xadd(KEYS.stream(replica.member), {b"b": wire.encode_events(batch)}, id=f"{batch.seq}-0")
    for number in range(20):
        replica.compute(tokens(f"after {number}", 64))
    wait_until(lambda: value(registry, "warmlane_index_resyncs_total", reason="gap") > 0, "resynced")
    expect_mirrored(router, replica)


def test_c21_a_lost_stream_is_noticed_without_a_new_event(up: World) -> None:
    replica, router = up.replica(), up.router()
    expect_mirrored(router, replica)
    up.server.hang()
    wait_until(lambda: router.status()["redis"] == "away", "away")
    replica.compute(PROMPT)
    up.server.wake()
    expect_mirrored(router, replica)


def test_a_malformed_batch_is_dropped_counted_and_repaired(up: World) -> None:
    registry = CollectorRegistry()
    replica, router = up.replica(), up.router(registry=registry)
    replica.compute(PROMPT)
    expect_mirrored(router, replica)
    with up.server.client() as client:
        client.xadd(
            KEYS.stream(replica.member), {b"b": b"\x80\x04cos\nsystem\n"}, id=f"{replica.publisher.last_seq + 1}-0"
        )
    wait_until(
        lambda: value(registry, "warmlane_index_dropped_records_total", reason="malformed") > 0, "counted as malformed"
    )
    replica.compute(tokens("after", 64))
    expect_mirrored(router, replica)
    assert router.route(request(PROMPT)).predicted_hit_tokens == 192


@pytest.mark.parametrize("name", ["registration", "heartbeat", "snapshot"])
def test_malformed_records_of_a_replica_do_not_disturb_the_others(up: World, name: str) -> None:
    registry = CollectorRegistry()
    replica, router = up.replica(), up.router(registry=registry)
    with up.server.client() as client:
        if name != "registration":
            good = wire.ReplicaRegistration("replica-x", "0", HASHER.canary, 16, 100, 1.0)
            client.set(KEYS.registration("replica-x/0"), wire.encode_registration(good), px=60_000)
        if name == "heartbeat":
            client.xadd(KEYS.heartbeats, {b"m": b"replica-x/0", b"b": b"garbage"})
        else:
            client.set(getattr(KEYS, name)("replica-x/0"), b"garbage", px=60_000)
        client.sadd(KEYS.members, "replica-x/0", b"\xff\xfe")
        client.sadd(KEYS.routers, "ingress-x")
        client.set(KEYS.reservations("ingress-x"), b"garbage", px=60_000)
    wait_until(lambda: value(registry, "warmlane_index_dropped_records_total", reason="malformed") >= 2, "counted")
    replica.compute(PROMPT)
    expect_mirrored(router, replica)


def put_string(world: World, name: str) -> None:
    """In place of what lies there, and without an end: as by a foreign hand that knows nothing of leases."""
    with world.server.client() as client:
        client.set(name, "not of this type")


def put_list(world: World, name: str) -> None:
    with world.server.client() as client, client.pipeline() as pipe:
        pipe.delete(name)
        pipe.rpush(name, "not of this type")
        pipe.execute()


@pytest.mark.parametrize("name", ["stream", "snapshot", "registration", "heartbeats"])
def test_a_key_of_another_type_costs_its_replica_alone_and_heals(up: World, name: str) -> None:
    """XREAD refuses all streams for the sake of one name that is none; a pipeline raises its first error."""
    registry = CollectorRegistry()
    bad, good = up.replica("replica-a"), up.replica("replica-b")
    router = up.router(registry=registry)
    bad.compute(PROMPT)
    expect_mirrored(router, bad, good)
    key = KEYS.heartbeats if name == "heartbeats" else getattr(KEYS, name)(bad.member)
    (put_list if name in {"registration", "heartbeats"} else put_string)(up, key)
    for number in range(20):
        good.compute(tokens(f"meanwhile {number}", 64))
    expect_mirrored(router, good)
    assert router.status()["redis"] == "connected"
    bad.compute(tokens("after", 64))
    expect_mirrored(router, bad, good)
    assert router.explain(request(PROMPT)).predicted_hit_tokens == 192


def test_a_stream_of_another_type_whose_replica_is_gone_is_counted_and_disturbs_nobody(up: World) -> None:
    """Nobody puts it right: a replica that hangs. It is looked at less and less often."""
    registry = CollectorRegistry()
    hung, good = up.replica("replica-a"), up.replica("replica-b")
    router = up.router(registry=registry)
    hung.compute(PROMPT)
    expect_mirrored(router, hung, good)
    with up.server.client() as client:
        registration = client.get(KEYS.registration(hung.member))
        hung.publisher._publication.beat = lambda _: True  # type: ignore[union-attr, method-assign]
        client.set(KEYS.registration(hung.member), registration, px=60_000)
    put_string(up, KEYS.stream(hung.member))

    def dropped() -> float:
        return value(registry, "warmlane_index_dropped_records_total", reason="malformed")

    wait_until(lambda: dropped() >= 2, "counted more than once")
    for number in range(20):
        good.compute(tokens(f"meanwhile {number}", 64))
    expect_mirrored(router, good)
    assert router.status()["redis"] == "connected"
    assert router.explain(request(PROMPT)).predicted_hit_tokens == 192  # as far as the router had read
    assert dropped() < 10


@pytest.mark.parametrize("name", ["members", "routers", "policy"])
def test_a_shared_name_of_another_type_is_put_right(up: World, name: str) -> None:
    registry = CollectorRegistry()
    replicas = [up.replica("replica-a"), up.replica("replica-b")]
    router = up.router(registry=registry)
    replicas[0].compute(PROMPT)
    expect_mirrored(router, *replicas)
    (put_list if name == "policy" else put_string)(up, getattr(KEYS, name))
    wait_until(lambda: value(registry, "warmlane_index_dropped_records_total", reason="malformed") >= 1, "counted")
    assert router.explain(request(PROMPT)).predicted_hit_tokens == 192
    replicas[1].compute(tokens("after", 64))
    expect_mirrored(router, *replicas)
    if name != "policy":  # of it there is none, so nothing stands in its place
        with up.server.client() as client:
            wait_until(lambda: client.type(getattr(KEYS, name)) == b"set", "the set is there again")


def test_flush_is_survived_without_losing_the_mirror(up: World) -> None:
    """Leases that vanish all at once are the store's trouble, and nobody's death (C23)."""
    replicas = [up.replica("replica-a"), up.replica("replica-b")]
    router = up.router()
    replicas[0].compute(PROMPT)
    expect_mirrored(router, *replicas)
    with up.server.client() as client:
        client.flushall()
        assert router.explain(request(PROMPT)).predicted_hit_tokens == 192
        wait_until(lambda: client.exists(*(KEYS.registration(r.member) for r in replicas)) == 2, "registered again")
    replicas[1].compute(PROMPT[:64])
    expect_mirrored(router, *replicas)


@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_c27_redis_goes_away_and_comes_back(up: World, fault: str) -> None:
    replicas = [up.replica("replica-a"), up.replica("replica-b")]
    registry = CollectorRegistry()
    router = up.router(registry=registry)
    replicas[0].compute(PROMPT)
    expect_mirrored(router, *replicas)
    getattr(up.server, fault)()
    replicas[0].compute(tokens("while away", 160))
    wait_until(lambda: router.explain(request(PROMPT)).rung == Rung.STALE, "the rung says that the mirror is stale")
    decision = router.route(request(PROMPT, "meanwhile"))
    assert (decision.replica_id, decision.predicted_hit_tokens) == ("replica-a", 192)
    assert value(registry, "warmlane_router_rung") == Rung.STALE
    assert value(registry, "warmlane_index_staleness_seconds") > 1.0
    if fault == "kill":
        up.server.start()
    else:
        up.server.wake()
    wait_until(lambda: router.explain(request(PROMPT)).rung == Rung.FRESH, "fresh again")
    expect_mirrored(router, *replicas)


def test_c27_absent_at_the_start(world: World) -> None:
    replicas = [world.replica("replica-a"), world.replica("replica-b")]
    router = world.router()
    replicas[0].compute(PROMPT)
    first = router.route(request(PROMPT, "first"))
    assert (first.outcome, first.rung) == (Outcome.FALLBACK, Rung.RENDEZVOUS)
    second = router.route(request(PROMPT, "second"))  # known from the router's own prediction
    assert (second.replica_id, second.outcome, second.predicted_hit_tokens) == (first.replica_id, Outcome.WARM, 192)
    world.server.start()
    expect_mirrored(router, *replicas)
    assert router.ready
    assert router.explain(request(PROMPT)).rung == Rung.FRESH


def test_42_c19_a_restarted_replica_is_another_incarnation(up: World) -> None:
    old, router = up.replica(incarnation="01", started_at=1.0), up.router()
    old.compute(PROMPT)
    expect_mirrored(router, old)
    new = up.replica(incarnation="02", started_at=2.0)  # the lease of the old one is still running
    expect_mirrored(router, new)
    assert router.explain(request(PROMPT)).predicted_hit_tokens == 0
    old.compute(tokens("orphan", 64))  # replayed events of the old one change nothing
    new.compute(tokens("new", 64))
    expect_mirrored(router, new)


def test_a_replica_that_stops_is_no_longer_warm(up: World) -> None:
    leaving, staying = up.replica("replica-a"), up.replica("replica-b")
    router = up.router()
    leaving.compute(PROMPT)
    expect_mirrored(router, leaving, staying)
    leaving.publisher.stop()
    wait_until(lambda: not described(router)["replica-a"]["registered"], "left")
    decision = router.route(request(PROMPT))
    assert (decision.reachable_hit_tokens, decision.outcome) == (0, Outcome.COLD)


def test_46_a_death_seen_by_one_router_is_known_to_all(up: World) -> None:
    """The publisher is silenced without removing its keys, as by SIGKILL: its lease would still run."""
    dead, alive = up.replica("replica-a"), up.replica("replica-b")
    routers = [up.router("ingress-1"), up.router("ingress-2")]
    dead.compute(PROMPT)
    for router in routers:
        expect_mirrored(router, dead, alive)
    dead.publisher._publication.beat = lambda _: True  # type: ignore[union-attr, method-assign]
    routers[0].replica_failed("replica-a")
    assert routers[0].route(request(PROMPT)).replica_id == "replica-b"
    wait_until(lambda: not described(routers[1])["replica-a"]["registered"], "the other router dropped it")
    with up.server.client() as client:
        assert client.get(KEYS.registration(dead.member)) == TOMBSTONE


def test_a_replica_wrongly_taken_for_dead_comes_back(up: World) -> None:
    replica, _ = up.replica("replica-a"), up.replica("replica-b")
    router = up.router()
    replica.compute(PROMPT)
    expect_mirrored(router, replica)
    router.replica_failed("replica-a")
    assert router.explain(request(PROMPT)).reachable_hit_tokens == 0
    expect_mirrored(router, replica)
    assert router.explain(request(PROMPT)).reachable_hit_tokens == 192


def test_a30_a_replica_with_another_secret_is_routable_and_never_warm(up: World) -> None:
    registry = CollectorRegistry()
    foreign = up.replica("replica-a", hasher=BlockHasher(b"another-secret-16", "model", 16))
    router = up.router(registry=registry)
    foreign.compute(PROMPT)
    wait_until(lambda: value(registry, "warmlane_index_dropped_records_total", reason="foreign") == 1, "counted")
    for name in ("one", "two"):
        decision = router.route(request(PROMPT, name))
        assert (decision.replica_id, decision.predicted_hit_tokens) == ("replica-a", 0)


def test_an_unregistered_replica_is_routable_and_never_warm(up: World) -> None:
    router = up.router()
    up.running.replace({"replica-new"})
    wait_until(lambda: router._state.last_synced is not None, "synced")
    for name in ("one", "two"):
        decision = router.route(request(PROMPT, name))
        assert (decision.replica_id, decision.outcome, decision.rung) == ("replica-new", Outcome.COLD, Rung.FRESH)


def test_51_a34_the_salt_is_part_of_every_key(up: World) -> None:
    replica, router = up.replica(), up.router()
    salted = ExtraKeys(cache_salt="a")
    keys = HASHER.keys(PROMPT, salted)
    replica.publisher.publish([BlocksStored(tuple(keys))])
    replica.held |= set(keys)
    expect_mirrored(router, replica)

    def hit(salt: str | None) -> int:
        extra = ExtraKeys(cache_salt=salt)
        return router.explain(RouteRequest("r", PROMPT, 16, extra)).predicted_hit_tokens

    assert [hit("a"), hit("b"), hit(None)] == [192, 0, 0]


def test_stop_leaves_no_key_of_the_router(up: World) -> None:
    replica, router = up.replica(), up.router()
    expect_mirrored(router, replica)
    router.stop()
    replica.publisher.stop()
    with up.server.client() as client:
        assert client.keys("*") == []


def test_every_key_has_a_ttl(up: World) -> None:
    replica, router = up.replica(), up.router()
    replica.compute(PROMPT)
    expect_mirrored(router, replica)
    with up.server.client() as client:
        lives = {name: client.pttl(name) for name in client.keys("*")}
    assert len(lives) == 7
    assert all(life > 0 for life in lives.values()), lives


def test_58_a_registration_from_the_future_keeps_nobody_out(up: World) -> None:
    """The wrong record is never renewed and never expires; what it claims is no replica's."""
    registry = CollectorRegistry()
    replica, router = up.replica(incarnation="01"), up.router(registry=registry)
    expect_mirrored(router, replica)
    wrong = wire.ReplicaRegistration("replica-a", "00", HASHER.canary, 16, 10_000, time.time() + 3600)
    with up.server.client() as client:
        client.set(KEYS.registration("replica-a/00"), wire.encode_registration(wrong))
        client.sadd(KEYS.members, "replica-a/00")
    wait_until(lambda: value(registry, "warmlane_index_dropped_records_total", reason="malformed") == 1, "counted")
    replica.compute(PROMPT)
    expect_mirrored(router, replica)
    assert described(router)["replica-a"]["incarnation"] == "01"
