"""Load as a router sees it through Redis: of real engines at their cap, and of two publishers of one replica (58)."""

from collections.abc import Iterator

from cache.wire import records as wire
from cache.wire.records import ReplicaLoad
from replica.engine.engine import Engine
from replica.engine.load import engine_load
from replica.errors import EngineOverloaded
from replica.messages import GenerateRequest
from replica.sampling_params import SamplingParams
from router.prefix_router import PrefixRouter
from tests.replica.tiny_models import tiny_engine
from tests.router.routers import KEYS, PublishedReplica, request, tokens
from tests.router.world import World, described, expect_mirrored
from tests.waiting import wait_until

CAP = 6
BUSY = ReplicaLoad(num_running=8, num_waiting=50, queued_prefill_tokens=9000, prefill_tokens_per_second=400.0)
CALM = ReplicaLoad(num_running=1, prefill_tokens_per_second=400.0)


def fill(engine: Engine) -> int:
    """Sends requests until the engine refuses one."""
    prompts = (GenerateRequest(f"r{n}", [n + 1] * 20, SamplingParams(max_tokens=2), 0.0) for n in range(1000))
    for number, message in enumerate(prompts):
        try:
            engine.add(message)
        except EngineOverloaded:
            return number
    raise AssertionError("the engine takes whatever comes")


def publish_load(replica: PublishedReplica, engine: Engine, router: PrefixRouter) -> None:
    """From the engine to the heartbeat, and until the router knows it."""
    replica.load = load = engine_load(engine.scheduler, engine.speed)

    def known() -> bool:
        seen = described(router)[replica.replica_id]
        return (seen["num_waiting"], seen["queued_prefill_tokens"]) == (load.num_waiting, load.queued_prefill_tokens)

    wait_until(known, f"the router knows that {load.num_waiting} requests wait at {replica.replica_id}")


def choices(router: PrefixRouter, name: str) -> Iterator[str]:
    """Where eight cold prompts go that all stay open."""
    for number in range(8):
        yield router.route(request(tokens(f"{name} {number}", 40), f"{name} {number}")).replica_id


def test_58_a_replica_at_its_cap_is_left_and_returns_to_rotation_when_it_has_drained(up: World) -> None:
    engine = tiny_engine(max_waiting_requests=CAP)
    full, other = up.replica("replica-a"), up.replica("replica-b")
    router = up.router()
    expect_mirrored(router, full, other)
    assert fill(engine) == CAP
    publish_load(full, engine, router)
    assert router.route(request(tokens("while full", 40), "while full")).replica_id == "replica-b"
    router.finish("while full")
    while engine.has_work:
        engine.step()
    publish_load(full, engine, router)
    assert set(choices(router, "drained")) == {"replica-a", "replica-b"}


def beat_of(world: World, replica: PublishedReplica) -> ReplicaLoad | None:
    with world.server.client() as client:
        found = [f[b"b"] for _, f in client.xrange(KEYS.heartbeats) if f[b"m"] == replica.member.encode()]
    return wire.decode_heartbeat(found[-1]).load if found else None


def loads_over_polls(router: PrefixRouter, num_polls: int) -> list[tuple[object, object]]:
    """What the router said about the replica's load while it looked into Redis so many times."""
    seen, polls = [], set()

    def look() -> bool:
        polls.add(router._state.last_synced)
        known = described(router)["replica-a"]
        seen.append((known["num_running"], known["num_waiting"]))
        return len(polls) > num_polls

    wait_until(look, f"{num_polls} polls")
    return seen


def test_58_of_two_publishers_of_one_replica_the_later_one_owns_the_load(up: World) -> None:
    old = up.replica(incarnation="01", started_at=1.0)
    old.load = BUSY
    router = up.router()
    wait_until(lambda: "replica-a" in described(router), "the router has heard of the replica")
    wait_until(lambda: described(router)["replica-a"]["num_waiting"] == 50, "the old one's load")
    new = up.replica(incarnation="02", started_at=2.0)
    new.load = CALM
    expect_mirrored(router, new)
    wait_until(lambda: described(router)["replica-a"]["num_running"] == 1, "the new one's load")
    old.load = wire.ReplicaLoad(num_running=9, num_waiting=60)  # it lives on, and its heartbeats are the latest ones
    wait_until(lambda: beat_of(up, old) == old.load, "the old one beats after the new one")
    assert set(loads_over_polls(router, 8)) == {(1, 0)}

    new.publisher._publication.beat = lambda _: True  # type: ignore[union-attr, method-assign]  # it hangs
    wait_until(lambda: not described(router)["replica-a"]["registered"], "its lease has ended")
    assert beat_of(up, old) == old.load
    assert all(waiting == 0 for _, waiting in loads_over_polls(router, 8))
    assert not described(router)["replica-a"]["registered"]
