"""Builders that several tests of the router use."""

import random
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from cache.block_hasher import BlockHasher
from cache.events import BlocksStored
from cache.wire.records import ReplicaLoad, ReplicaRegistration
from cache.wire.redis_keys import RedisKeys
from replica.event_publisher import EventPublisher
from router.prefix_router import PrefixRouter, RouteRequest
from router.running_set import RunningSet

HASHER = BlockHasher(b"0123456789abcdef", "model", 16)
KEYS = RedisKeys("model")


class ManualClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_router(
    redis_url: str | None = None,
    replicas: tuple[str, ...] | RunningSet = (),
    process: str = "ingress-1",
    policy: str = "expected_finish",
    hasher: BlockHasher = HASHER,
    clock: Callable[[], float] | None = None,
    seed: int = 1,
    registry: CollectorRegistry | None = None,
    **options: object,
) -> PrefixRouter:
    running = replicas if isinstance(replicas, RunningSet) else RunningSet()
    if running is not replicas:
        running.replace(replicas)
    if clock is not None:
        options["clock"] = clock
    return PrefixRouter(
        model="m",
        hasher=hasher,
        redis_url=redis_url,
        policy=policy,
        policy_weights={},
        registry=registry or CollectorRegistry(),
        process=process,
        rng=random.Random(seed),
        max_model_len=100_000,
        running_set=running,
        **options,  # type: ignore[arg-type]
    )


class PublishedReplica:
    """A replica's side of the shared memory, without an engine."""

    def __init__(
        self,
        redis_url: str,
        replica_id: str = "replica-a",
        incarnation: str = "01",
        hasher: BlockHasher = HASHER,
        started_at: float = 1.0,
    ):
        self.replica_id = replica_id
        self.member = RedisKeys.member(replica_id, incarnation)
        self.load = ReplicaLoad(prefill_tokens_per_second=400.0)
        registration = ReplicaRegistration(
            replica_id, incarnation, hasher.canary, hasher.block_size, 10_000, started_at
        )
        self.publisher = EventPublisher(redis_url, RedisKeys(hasher.fingerprint), registration, lambda: self.load)
        self.hasher = hasher
        self.held: set[bytes] = set()

    def compute(self, token_ids: list[int]) -> None:
        """The engine has computed this prompt."""
        keys = self.hasher.keys(token_ids)
        self.held |= set(keys)
        self.publisher.publish([BlocksStored(tuple(keys))])


def tokens(name: str, length: int) -> list[int]:
    rng = random.Random(name)
    return [rng.randrange(50_000) for _ in range(length)]


def request(token_ids: list[int], request_id: str = "request") -> RouteRequest:
    return RouteRequest(request_id, token_ids, 32)
