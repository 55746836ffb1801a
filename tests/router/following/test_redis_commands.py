"""What an access list of the server must allow: cache/wire/README.md says it, the server says what was used."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.router.routers import HASHER, request, tokens
from tests.router.world import World, described, expect_mirrored, value
from tests.waiting import wait_until

OF_THIS_TEST = {"info"}


def documented() -> set[str]:
    text = (Path(__file__).parents[3] / "cache" / "wire" / "README.md").read_text()
    (listed,) = re.findall(r"^Commands: (.*?)\.(?= |\n)", text, re.DOTALL | re.MULTILINE)
    without_options = re.sub(r"\([^)]*\)", "", listed)
    return {name.lower() for name in re.findall(r"\b[A-Z]{3,}\b", without_options)}


def used(world: World) -> set[str]:
    with world.server.client() as client:
        names = client.info("commandstats")
    found = {name.removeprefix("cmdstat_").split("|")[0] for name in names} - OF_THIS_TEST
    return found | {"client"}  # servers that do not know CLIENT SETINFO do not all count it


def test_the_commands_that_are_used_are_those_that_are_listed(up: World) -> None:
    registry = CollectorRegistry()
    replica, leaving, dead = up.replica("replica-a"), up.replica("replica-b"), up.replica("replica-c")
    router, other = up.router("ingress-1", registry=registry), up.router("ingress-2")
    replica.compute(tokens("prompt", 200))
    expect_mirrored(router, replica, leaving, dead)
    router.route(request(tokens("prompt", 200)))
    state = router._state
    with state._lock:  # a difference: read from the snapshot and from the batches behind it
        state._mirror.store(state._replicas["replica-a"].slot, HASHER.keys(tokens("never computed", 48)))
    wait_until(lambda: value(registry, "warmlane_index_resyncs_total", reason="drift") >= 1, "repaired")
    router.set_policy("least_tokens", {})
    wait_until(lambda: other.policy == "least_tokens", "the policy has come over")
    dead.publisher._publication.beat = lambda _: True  # type: ignore[union-attr, method-assign]
    router.replica_failed("replica-c")
    wait_until(lambda: not described(other)["replica-c"]["registered"], "declared dead")
    leaving.publisher.stop()
    other.stop()
    wait_until(lambda: not described(router)["replica-b"]["registered"], "left")
    assert used(up) == documented()
