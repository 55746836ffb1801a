"""A server at the limit of its memory, set up as deploy/ does: it takes nothing new, and nobody is taken for dead."""

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import yaml
from redis import Redis

from cache.wire.redis_keys import LEASE_SECONDS, TOMBSTONE
from tests.deploy.dashboard import DEPLOY_DIR
from tests.router.routers import KEYS, request, tokens
from tests.router.world import World, expect_mirrored
from tests.valkey_process import ValkeyProcess, wait_until

PROMPT = tokens("prompt", 200)


def deployed_options() -> list[tuple[str, ...]]:
    """What deploy/ gives its servers, without the port's own and the secret."""
    compose = yaml.safe_load((DEPLOY_DIR / "compose.yaml").read_text(encoding="utf-8"))
    kuberay = yaml.safe_load_all((DEPLOY_DIR / "kuberay/rayservice.yaml").read_text(encoding="utf-8"))
    deployment = next(document for document in kuberay if document["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    found = []
    for command in (compose["services"]["redis"]["command"], [*container.get("command", []), *container["args"]]):
        text = " ".join(map(str, command))
        found.append(tuple(re.findall(r"(--maxmemory(?:-policy)?) (\S+)", text)))
    return [tuple(word for pair in pairs for word in pair) for pairs in found]


@pytest.fixture(params=[0, 1], ids=["compose", "kuberay"])
def server(request: pytest.FixtureRequest) -> Iterator[ValkeyProcess]:
    server = ValkeyProcess(*deployed_options()[request.param])
    server.start()
    yield server
    server.close()


@pytest.fixture
def world(server: ValkeyProcess) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(server, stack)


def fill(client: Redis) -> None:
    """To the limit and beyond, with what lives longer than any lease."""
    for number in range(200):
        client.set(f"other:{number}", bytes(20_000), ex=3600)
    client.config_set("maxmemory", client.info("memory")["used_memory"] - 100_000)


def test_replicas_and_their_blocks_survive_a_full_server(world: World, server: ValkeyProcess) -> None:
    replicas = [world.replica(f"replica-{number}") for number in range(20)]
    router = world.router()
    for replica in replicas:
        replica.compute(PROMPT)
    expect_mirrored(router, *replicas)
    with server.client() as client:
        names = {name for name in client.keys("*") if b"registration" in name}
        fill(client)
        wait_until(
            lambda: not any(replica.publisher.connected for replica in replicas), "each replica has met the limit"
        )
        full_since = clock(client)
        wait_until(lambda: clock(client) > full_since + LEASE_SECONDS + 0.5, "more than a lease has passed")
        assert {name for name in client.keys("*") if b"registration" in name} == names
        assert client.info("stats")["evicted_keys"] == 0
        assert client.scard(KEYS.members) == 20
        assert router.explain(request(PROMPT)).predicted_hit_tokens == 192
        client.delete(*(f"other:{number}" for number in range(200)))
    replicas[0].compute(tokens("another", 100))
    expect_mirrored(router, *replicas)


def clock(client: Redis) -> float:
    seconds, microseconds = client.time()
    return float(seconds + microseconds / 1e6)


def test_the_mark_of_a_dead_replica_is_not_prolonged(world: World, server: ValkeyProcess) -> None:
    replica = world.replica()
    wait_until(lambda: replica.publisher.connected, "connected")
    with server.client() as client:
        (name,) = (name for name in client.keys("*") if b"registration" in name)
        fill(client)
        wait_until(lambda: not replica.publisher.connected, "the replica has met the limit")
        client.config_set("maxmemory", 0)
        client.set(name, TOMBSTONE, px=10_000)
        client.config_set("maxmemory", 1)
        before = client.pttl(name)
        wait_until(lambda: client.pttl(name) < before - 1000, "the mark grows old")
        client.config_set("maxmemory", 0)
        wait_until(lambda: client.get(name) != TOMBSTONE, "the replica has registered again")
