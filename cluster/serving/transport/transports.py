"""How a request reaches its replica and the answer comes back: the ways there are, and which of them is taken."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from cluster.api.ingress_metrics import IngressMetrics
from cluster.serving.transport.channel_pool import ChannelPool, PoolListeners
from cluster.serving.transport.ingress_channel import lost
from cluster.serving.transport.serve_call import serve_call
from replica.messages import GenerateRequest, TokenChunk
from router.prefix_router import PrefixRouter
from router.running_set import RUNNING_SET

OnRequest = Callable[[str], None]
"""Told the transport of each request: handle or side_channel."""


class Answer(Protocol):
    """What a replica sends for one request: first an empty list, by which it takes the request, then chunks.

    Raises what the replica raised, in Ray's wrapping or not, or what says that the replica or the connection is gone.
    """

    async def __anext__(self) -> list[TokenChunk]: ...

    def cancel(self) -> None:
        """Aborts the request; a no-op when it has ended."""


class Transport(Protocol):
    async def send(self, request: GenerateRequest, replica_id: str) -> Answer:
        """Raises ReplicaLost where the replica cannot be reached in this way."""


class HandleTransport:
    """Request and answer by one Serve stream."""

    def __init__(self, replica_handle: Any, on_request: OnRequest = lambda transport: None):
        """replica_handle: Serve handle of the replicas."""
        self._generate = replica_handle.options(method_name="generate", stream=True)
        self._on_request = on_request

    async def send(self, request: GenerateRequest, replica_id: str) -> Answer:
        self._on_request("handle")
        answer: Answer = serve_call(self._generate, request.leaving(), route_to=replica_id)
        return answer


class SideChannelTransport:
    """Request and answer over the side channel to the replica."""

    def __init__(
        self, channels: ChannelPool, fallback: HandleTransport | None, on_request: OnRequest = lambda transport: None
    ):
        """fallback: takes requests while there is no channel; without one they wait for it, and fail where it cannot
        be opened."""
        self._channels = channels
        self._fallback = fallback
        self._on_request = on_request

    async def send(self, request: GenerateRequest, replica_id: str) -> Answer:
        if self._fallback is not None:
            channel = self._channels.channel(replica_id)
            if channel is None:
                return await self._fallback.send(request, replica_id)
        else:
            channel = await self._channels.opened(replica_id)
            if channel is None:
                raise lost()
        answer = channel.send(request)
        self._on_request("side_channel")
        return answer


def make_transport(
    name: str, replica_handle: Any, secret: bytes, router: PrefixRouter, metrics: IngressMetrics
) -> Transport:
    """name: one of TRANSPORTS. secret: the cluster's. Called in the event loop that will serve the requests."""
    handle = HandleTransport(replica_handle, metrics.count_transport)
    if name == "handle":
        return handle
    listeners = PoolListeners(on_failure=metrics.count_channel_failure, on_gone=router.replica_failed)
    channels = ChannelPool(replica_handle, secret, listeners)
    loop = asyncio.get_running_loop()

    def on_replicas(replica_ids: frozenset[str]) -> None:  # in the thread of Ray's router
        loop.call_soon_threadsafe(channels.follow, replica_ids)

    RUNNING_SET.subscribe(on_replicas)
    loop.call_soon(channels.follow, RUNNING_SET.replicas)
    return SideChannelTransport(channels, handle if name == "auto" else None, metrics.count_transport)
