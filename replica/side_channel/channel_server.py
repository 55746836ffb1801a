"""Where a replica listens for side channels."""

import asyncio

from replica.errors import ChannelClosed
from replica.messages import ChannelAddress
from replica.side_channel.handshake import ReplicaHandshake
from replica.side_channel.replica_channel import ChannelBounds, ReplicaChannel

MAX_UNPROVEN = 64
"""Connections that have not proven themselves yet; beyond that new ones are closed at once."""


class ChannelServer:
    """Listens from the first time that an ingress asks for the address. Belongs to the event loop that asks."""

    def __init__(self, secret: bytes, replica_id: str, host: str, bounds: ChannelBounds | None = None):
        """secret: the cluster's. host: an address of this machine that the ingresses reach, and nobody else if it can
        be helped."""
        self._secret = secret
        self._replica_id = replica_id
        self._host = host
        self._bounds = bounds or ChannelBounds()
        self._open: dict[bytes, ReplicaChannel] = {}
        self._unproven: set[ReplicaChannel] = set()
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()

    async def address(self) -> ChannelAddress:
        """Raises OSError where nothing can listen on the host."""
        async with self._starting:
            if self._server is None:
                self._server = await asyncio.get_running_loop().create_server(self._connect, self._host, 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return ChannelAddress(self._replica_id, host, port)

    def channel(self, channel_id: bytes) -> ReplicaChannel:
        """Raises ChannelClosed when there is none of this id."""
        channel = self._open.get(channel_id)
        if channel is None:
            raise ChannelClosed("this replica has no such side channel")
        return channel

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for channel in [*self._open.values(), *self._unproven]:
            channel.close()

    def _connect(self) -> asyncio.Protocol:
        if len(self._unproven) >= MAX_UNPROVEN:
            return _Refusal()
        channel = ReplicaChannel(
            ReplicaHandshake(self._secret, self._replica_id), self._bounds, self._opened, self._closed
        )
        self._unproven.add(channel)
        return channel

    def _opened(self, channel: ReplicaChannel) -> None:
        self._unproven.discard(channel)
        if channel.channel_id is not None:
            self._open[channel.channel_id] = channel

    def _closed(self, channel: ReplicaChannel) -> None:
        self._unproven.discard(channel)
        if channel.channel_id is not None and self._open.get(channel.channel_id) is channel:
            del self._open[channel.channel_id]


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
