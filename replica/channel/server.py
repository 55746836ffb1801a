"""Where a replica listens for side channels."""

import asyncio

from replica.channel.handshake import SIDE_CHANNEL, ListeningHandshake
from replica.channel.replica_channel import ChannelBounds, ReplicaChannel
from replica.channel.response_streams import Generate
from replica.errors import ChannelClosed
from replica.messages import ChannelAddress

MAX_UNPROVEN = 64
"""Connections that have not proven themselves yet; beyond that the oldest is closed. An ingress proves itself within
milliseconds, so that connections which only idle never keep it out."""


class ChannelServer:
    """Listens from the first time that an ingress asks for the address. Belongs to the event loop that asks."""

    def __init__(
        self, generate: Generate, secret: bytes, replica_id: str, host: str, bounds: ChannelBounds | None = None
    ):
        """generate: the engine's. secret: the cluster's. host: an address of this machine that ingresses can reach."""
        self._generate = generate
        self._secret = secret
        self._replica_id = replica_id
        self._host = host
        self._bounds = bounds or ChannelBounds()
        self._proven: dict[bytes, ReplicaChannel] = {}
        self._unproven: dict[ReplicaChannel, None] = {}  # the oldest first
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()

    @property
    def num_requests(self) -> int:
        return sum(channel.num_requests for channel in self._proven.values())

    async def address(self) -> ChannelAddress:
        """Raises OSError where nothing can listen on the host."""
        async with self._starting:
            if self._server is None:
                self._server = await asyncio.get_running_loop().create_server(self._connect, self._host, 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return ChannelAddress(self._replica_id, host, port)

    async def hold(self, channel_id: bytes) -> None:
        """Lets requests in on this channel and returns when it has ended. Raises ChannelClosed when there is none."""
        channel = self._proven.get(channel_id)
        if channel is None:
            raise ChannelClosed("this replica has no such side channel")
        channel.hold()
        try:
            await asyncio.shield(channel.closed)
        finally:
            channel.close()  # a call that Ray cancels takes the channel with it

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for channel in [*self._proven.values(), *self._unproven]:
            channel.close()

    def _connect(self) -> asyncio.Protocol:
        handshake = ListeningHandshake(self._secret, self._replica_id, SIDE_CHANNEL)
        return ReplicaChannel(handshake, self._generate, self._bounds, self._changed)

    def _changed(self, channel: ReplicaChannel) -> None:
        self._unproven.pop(channel, None)
        if channel.closed.done():
            if channel.channel_id is not None and self._proven.get(channel.channel_id) is channel:
                del self._proven[channel.channel_id]
        elif channel.channel_id is None:
            self._unproven[channel] = None
            if len(self._unproven) > MAX_UNPROVEN:
                next(iter(self._unproven)).close()
        else:
            self._proven[channel.channel_id] = channel
