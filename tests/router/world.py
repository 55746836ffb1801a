"""Real routers and real publishers around one real server, and what a test asks of them."""

from contextlib import ExitStack

from prometheus_client import CollectorRegistry

from cache.key_set import range_digests
from router.prefix_router import PrefixRouter
from router.running_set import RunningSet
from tests.router.routers import PublishedReplica, make_router
from tests.valkey_process import ValkeyProcess
from tests.waiting import wait_until


class World:
    """Starts replicas and routers around a server and stops them at the end."""

    def __init__(self, server: ValkeyProcess, stack: ExitStack) -> None:
        self.server, self._stack = server, stack
        self.running = RunningSet()

    def replica(self, replica_id: str = "replica-a", **options: object) -> PublishedReplica:
        replica = PublishedReplica(self.server.url, replica_id, **options)  # type: ignore[arg-type]
        replica.publisher.start()
        self._stack.callback(replica.publisher.stop)
        self.running.replace(self.running.replicas | {replica_id})
        return replica

    def router(self, process: str = "ingress-1", **options: object) -> PrefixRouter:
        router = make_router(self.server.url, self.running, process, **options)  # type: ignore[arg-type]
        router.start()
        self._stack.callback(router.stop)
        return router


def mirrored(router: PrefixRouter, replica: PublishedReplica) -> bool:
    """Whether the router's picture of the replica is exactly what it holds."""
    state = router._state
    known = state._replicas.get(replica.replica_id)
    if known is None or known.registration is None:
        return False
    stats = state.stats(known.registration)
    return stats is not None and (stats.num_keys, stats.digests) == (len(replica.held), range_digests(replica.held))


def expect_mirrored(router: PrefixRouter, *replicas: PublishedReplica) -> None:
    wait_until(lambda: router._state.last_synced is not None, "the router has read all")
    for replica in replicas:
        wait_until(lambda replica=replica: mirrored(router, replica), f"the mirror agrees with {replica.replica_id}")


def described(router: PrefixRouter) -> dict[str, dict[str, object]]:
    replicas = router.status()["replicas"]
    assert isinstance(replicas, dict)
    return replicas


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, {"model": "m", "process": "ingress-1", **labels}) or 0.0
