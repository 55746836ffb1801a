"""How a request reaches its replica, and how the answer comes back."""

from collections.abc import Callable
from typing import Any, Protocol

from cluster.ingress_metrics import IngressMetrics
from cluster.relay_failures import is_replica_gone
from cluster.serve_call import serve_call
from cluster.side_channel.channel_answer import ChannelAnswer
from cluster.side_channel.channel_pool import ChannelPool
from cluster.side_channel.ingress_channel import ChannelLost, IngressChannel
from replica.messages import GenerateRequest, TokenChunk


class Answer(Protocol):
    """What a replica sends for one request: first an empty list, by which it takes the request, then chunks.

    Raises what the replica raised, in Ray's wrapping, or what says that the replica or the connection is gone.
    """

    async def __anext__(self) -> list[TokenChunk]: ...

    def cancel(self) -> None:
        """Aborts the request; a no-op when it has ended."""


class Transport(Protocol):
    async def send(self, request: GenerateRequest, replica_id: str) -> Answer:
        """Raises ReplicaLost where the replica cannot be reached in this way."""


class HandleTransport:
    """Request and answer by one Serve stream."""

    def __init__(self, replica_handle: Any, on_request: Callable[[str], None] = lambda transport: None):
        """on_request: told "handle" for each request."""
        self._generate = replica_handle.options(method_name="generate", stream=True)
        self._on_request = on_request

    async def send(self, request: GenerateRequest, replica_id: str) -> Answer:
        self._on_request("handle")
        answer: Answer = serve_call(self._generate, request, route_to=replica_id)
        return answer


class SideChannelTransport:
    """The request by a Serve call, the answer over the side channel to its replica."""

    def __init__(
        self,
        replica_handle: Any,
        channels: ChannelPool,
        on_call_error: Callable[[str, BaseException], None],
        fallback: HandleTransport | None,
        on_request: Callable[[str], None] = lambda transport: None,
    ):
        """on_call_error: told the replica and what its call raised. fallback: takes requests while there is no channel;
        without one they wait for it, and fail where there is none. on_request: told "side_channel" for each request."""
        self._call = replica_handle.options(method_name="send_over_channel")
        self._channels = channels
        self._on_call_error = on_call_error
        self._fallback = fallback
        self._on_request = on_request

    async def send(self, request: GenerateRequest, replica_id: str) -> Answer:
        if self._fallback is None:
            channel = await self._channels.opened(replica_id)
            if channel is None:
                raise ChannelLost("No connection to the replica could be opened.")
            return self._over(channel, request, replica_id)
        channel = self._channels.channel(replica_id)
        if channel is None:
            return await self._fallback.send(request, replica_id)
        return self._over(channel, request, replica_id)

    def _over(self, channel: IngressChannel, request: GenerateRequest, replica_id: str) -> Answer:
        self._on_request("side_channel")
        call = serve_call(self._call, request, channel.channel_id, route_to=replica_id)
        return ChannelAnswer(channel, call, request.request_id, lambda error: self._on_call_error(replica_id, error))


def make_transport(
    name: str, replica_handle: Any, secret: bytes, on_gone: Callable[[str], None], metrics: IngressMetrics
) -> Transport:
    """name: one of TRANSPORTS. secret: the cluster's. on_gone: told of a replica that a call has shown to be dead."""
    handle = HandleTransport(replica_handle, metrics.count_transport)
    if name == "handle":
        return handle

    def on_call_error(replica_id: str, error: BaseException) -> None:
        if is_replica_gone(error):
            on_gone(replica_id)

    channels = ChannelPool(replica_handle, secret, metrics.count_channel_failure)
    fallback = handle if name == "auto" else None
    return SideChannelTransport(replica_handle, channels, on_call_error, fallback, metrics.count_transport)
