"""The Ray Serve deployment that wraps one engine."""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import ray
from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from ray import serve

from cache.block_hasher import BlockHasher, ExtraKeys
from cache.garbage_collection import settle_garbage_collection
from cache.kv_cache_manager import PrefixOverlap
from cache.wire.records import ReplicaLoad, ReplicaRegistration
from cache.wire.redis_keys import RedisKeys
from replica.channel.server import ChannelServer
from replica.config import EngineConfig
from replica.engine.async_engine import AsyncEngine
from replica.engine.cache_inspection import cache_overlaps
from replica.engine.engine import Engine
from replica.engine.warm_up import warm_up
from replica.event_publisher import EventPublisher
from replica.factory import build_engine
from replica.loading.page_source import EnginePages
from replica.messages import ChannelAddress, GenerateRequest, TokenChunk
from replica.metrics import EngineMetrics
from replica.node_share import replicas_on_node, with_node_share
from replica.page_exchange import PageExchange
from replica.peers import Peers
from replica.transfer.page_puller import PagePuller
from replica.transfer.transfer import Transfer


class ReplicaDeployment:
    """One engine with its metrics and its voice in Redis. An incarnation lives as long as this object.

    Methods are called over a Serve handle; `route_to` is for the ingress's request router alone.
    """

    def __init__(
        self, *, engine: EngineConfig, model_name: str, fingerprint: str, secret: bytes, redis_url: str | None
    ):
        disable_created_metrics()
        self.replica_id = serve.get_replica_context().replica_id.unique_id
        self.incarnation = secrets.token_hex(8)
        self._model_name = model_name
        self._hasher = hasher = BlockHasher(secret, fingerprint, engine.block_size)
        self._registry = CollectorRegistry()
        self._process = f"replica-{self.replica_id}-{self.incarnation}"
        metrics = EngineMetrics(self._registry, model_name, self._process, self.replica_id)
        self._secret = secret
        built = self._build_engine(with_node_share(engine, _num_sharing()), hasher, metrics)
        warm_up(built)
        metrics.watch(built)
        self._forward_pass = str(built.forward_pass)
        self._engine = AsyncEngine(built)
        # The address by which Ray knows this node: loopback where the cluster is of this machine alone.
        host = ray.util.get_node_ip_address()
        self._exchange = None
        if (built.page_source is None) != (built.page_transfer is None):
            raise ValueError("an engine that gives pages away must be able to ask for them, and the other way round")
        if isinstance(built.page_source, EnginePages) and built.page_transfer is not None:
            peers = Peers(redis_url, RedisKeys(fingerprint), hasher.canary, self.replica_id)
            self._exchange = PageExchange(
                self._engine,
                built.page_source,
                built.page_transfer,
                peers,
                secret,
                self.replica_id,
                host,
                engine.pull_rate,
            )
        self._channels = ChannelServer(self._engine.generate, secret, self.replica_id, host)
        registration = ReplicaRegistration(
            replica_id=self.replica_id,
            incarnation=self.incarnation,
            canary=hasher.canary,
            block_size=engine.block_size,
            num_blocks=built.manager.num_blocks,
            started_at=time.time(),
            pages_at=self._exchange.address.to_text() if self._exchange is not None else "",
            block_bytes=built.page_bytes // built.manager.blocks_per_page,
        )
        self._publisher = EventPublisher(redis_url, RedisKeys(fingerprint), registration, load=self._load)
        metrics.on_kv_events = self._publisher.publish
        if self._exchange is not None:
            self._exchange.join()
        self._publisher.start()
        settle_garbage_collection()

    def _build_engine(self, config: EngineConfig, hasher: BlockHasher, metrics: EngineMetrics) -> Engine:
        return build_engine(config, hasher, observer=metrics, transfer=self._transfer)

    def _transfer(self, identity: bytes, page_bytes: int) -> Transfer:
        return PagePuller(self._secret, identity, page_bytes)

    def _load(self) -> ReplicaLoad:
        load = self._engine.load()
        return load if self._exchange is None else replace(load, num_pulls=self._exchange.num_pulls)

    async def generate(self, request: GenerateRequest, route_to: str | None = None) -> AsyncIterator[list[TokenChunk]]:
        """Streams a request; a cancelled call aborts it. Raises RequestRefused, EngineOverloaded or EngineDead.

        The first item is empty and comes at once: it tells the ingress, which bounds the wait for a replica, that this
        one has taken the request, however long it may then queue.
        """
        yield []
        async for chunks in self._engine.generate(request.arrived()):
            yield chunks

    async def channel_address(self, route_to: str | None = None) -> ChannelAddress:
        """Where this replica listens for side channels, from the first time it is asked."""
        return await self._channels.address()

    async def hold_channel(self, channel_id: bytes, route_to: str | None = None) -> None:
        """Lasts as long as the side channel, over which requests come as in `generate`: a replica that is to stop waits
        for its calls, and so for what runs there. Raises ChannelClosed where there is none of this id."""
        await self._channels.hold(channel_id)

    async def cache_overlaps(
        self, prompts: Sequence[Sequence[int]], extra_keys: ExtraKeys, route_to: str | None = None
    ) -> list[PrefixOverlap]:
        """How much of each prompt lies in this replica's cache now; nothing is computed."""
        return await cache_overlaps(self._engine, self._hasher, prompts, extra_keys)

    async def metrics_text(self, route_to: str | None = None) -> str:
        """This process's metrics in Prometheus's text format."""
        return generate_latest(self._registry).decode()

    async def describe(self, route_to: str | None = None) -> dict[str, object]:
        """Who this is and what it has to do, for health checks and people."""
        return {
            "replica_id": self.replica_id,
            "incarnation": self.incarnation,
            "model": self._model_name,
            "load": self._load(),
            "redis_connected": self._publisher.connected,
            "forward_pass": self._forward_pass,
        }

    async def hold_pages_back(self, seconds: float, route_to: str | None = None) -> None:
        """Peers get none of this replica's pages until it has been reset, or so many seconds have passed."""
        if (source := self._engine.engine.page_source) is not None:
            source.hold_back(seconds)

    async def reset_prefix_cache(self, route_to: str | None = None) -> int:
        """Forgets all cached pages; the index hears of it by an event. Returns how many keys there were."""

        def reset(engine: Engine) -> int:
            num_keys = len(engine.manager.cached_keys())
            engine.reset_prefix_cache()
            if engine.page_source is not None:
                engine.page_source.give_again()
            return num_keys

        return await self._engine.call(reset)

    def check_health(self) -> None:
        self._engine.check_health()

    def __del__(self) -> None:
        exchange, publisher = getattr(self, "_exchange", None), getattr(self, "_publisher", None)
        if publisher is not None:
            if exchange is not None:
                exchange.leave()
            publisher.stop()
        for part in (getattr(self, "_engine", None), exchange):
            if part is not None:
                part.close()


def _num_sharing() -> int:
    """Replicas on this node. Nodes that lend Ray no CPUs (a head of its own) hold none."""
    context = serve.get_replica_context()
    num_nodes = sum(bool(node["Alive"] and node["Resources"].get("CPU")) for node in ray.nodes())
    return replicas_on_node(context.rank.local_rank, context.world_size, num_nodes)
