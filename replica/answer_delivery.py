"""The two ways of an engine's answers to an ingress: a Serve stream, or a side channel."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from replica.messages import ChannelAddress, GenerateRequest, TokenChunk
from replica.side_channel.channel_server import ChannelServer

Generate = Callable[[GenerateRequest], AsyncGenerator[list[TokenChunk], None]]


class AnswerDelivery:
    """On both ways the first item is empty and comes at once: it tells the ingress, which bounds the wait for a
    replica, that this one has taken the request, however long it may then queue. Whatever ends the call early aborts
    the request.
    """

    def __init__(self, generate: Generate, secret: bytes, replica_id: str, host: str):
        """generate: the engine's. secret: the cluster's. host: where side channels are listened for."""
        self._generate = generate
        self._channels = ChannelServer(secret, replica_id, host)

    async def stream(self, request: GenerateRequest) -> AsyncIterator[list[TokenChunk]]:
        """Raises what the engine raises."""
        yield []
        async with aclosing(self._generate(request)) as answer:
            async for chunks in answer:
                yield chunks

    async def send(self, request: GenerateRequest, channel_id: bytes) -> None:
        """Returns when the whole answer is on its way. Raises what the engine raises, and ChannelClosed."""
        channel = self._channels.channel(channel_id)
        with channel.answering():
            channel.send(request.request_id, [])
            async with aclosing(self._generate(request)) as answer:
                async for chunks in answer:
                    channel.send(request.request_id, chunks)
                    await channel.drain()

    async def channel_address(self) -> ChannelAddress:
        """Raises OSError where nothing can be listened on."""
        return await self._channels.address()

    def close(self) -> None:
        self._channels.close()
