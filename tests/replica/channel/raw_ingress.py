"""The other end of a side channel in tests: says what it is told to, at the level of bytes."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress

from replica.channel import codec
from replica.channel.frames import FrameReader, framed
from replica.channel.handshake import SIDE_CHANNEL, ConnectingHandshake
from replica.channel.replica_channel import ChannelBounds
from replica.channel.server import ChannelServer
from replica.messages import FinishReason, GenerateRequest, TokenChunk, Usage
from replica.sampling_params import SamplingParams
from tests.waiting import BOUND_SECONDS

SECRET = b"0123456789abcdef"


def request_of(request_id: str, max_tokens: int = 3) -> GenerateRequest:
    return GenerateRequest(request_id, [1, 2], SamplingParams(max_tokens=max_tokens), 0.0)


class CountingEngine:
    """Gives `max_tokens` chunks, or waits before the one of number `hold`. `open` counts what it has."""

    def __init__(self, hold: int | None = None, text: str = "x", error: Exception | None = None):
        self.hold, self.text, self.error = hold, text, error
        self.release = asyncio.Event()
        self.open: set[str] = set()
        self.given = 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenChunk], None]:
        self.open.add(request.request_id)
        try:
            if self.error is not None:
                raise self.error
            for number in range(request.sampling.max_tokens or 0):
                if number == self.hold:
                    await self.release.wait()
                self.given += 1
                yield [TokenChunk(request.request_id, self.text, [number])]
                await asyncio.sleep(0)
            yield [TokenChunk(request.request_id, finish_reason=FinishReason.STOP, usage=Usage(2, 3, 0))]
        finally:
            self.open.discard(request.request_id)


class Listening:
    """A server on loopback that is closed behind the test."""

    def __init__(self, engine: CountingEngine, bounds: ChannelBounds | None = None):
        self.engine = engine
        self.server = ChannelServer(engine.generate, SECRET, "a", "127.0.0.1", bounds)
        self.holding: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Listening":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.server.close()
        await asyncio.gather(*self.holding, return_exceptions=True)

    async def connect(self) -> "RawIngress":
        address = await self.server.address()
        reader, writer = await asyncio.open_connection(address.host, address.port)
        return RawIngress(reader, writer)

    async def open(self) -> "RawIngress":
        """A channel that takes requests."""
        ingress = await self.connect()
        channel_id = await ingress.prove()
        self.holding.append(asyncio.create_task(self.server.hold(channel_id)))
        assert await ingress.messages() == [codec.Held()]
        return ingress


class RawIngress:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader, self.writer = reader, writer
        self._frames = FrameReader(2**28)

    async def frame(self) -> bytes:
        async with asyncio.timeout(BOUND_SECONDS):
            while (frame := self._frames.next_frame()) is None:
                data = await self.reader.read(2**16)
                assert data, "the replica closed the connection"
                self._frames.feed(data)
            return frame

    async def messages(self) -> list[codec.FromReplica]:
        return codec.from_replica(await self.frame())

    async def prove(self, challenge: bytes | None = None) -> bytes:
        """The channel's id, when the replica has proven itself as well. challenge: where it was read already."""
        handshake = ConnectingHandshake(SECRET, "a", SIDE_CHANNEL)
        self.write(framed(handshake.answer(challenge or await self.frame())))
        handshake.check(await self.frame())
        return handshake.channel_id

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def start(self, requests: Iterable[GenerateRequest]) -> None:
        for request in requests:
            self.write(codec.encode(codec.Start(request)))

    async def answers(self, *request_ids: str) -> dict[str, list[TokenChunk]]:
        """All chunks of these requests to their ends."""
        chunks: dict[str, list[TokenChunk]] = {request_id: [] for request_id in request_ids}
        waiting = set(request_ids)
        while waiting:
            for message in await self.messages():
                assert isinstance(message, codec.Answered), message
                chunks[message.request_id] += message.chunks
                if message.chunks and message.chunks[-1].finish_reason is not None:
                    waiting.discard(message.request_id)
        return chunks

    async def is_closed(self) -> bool:
        """Waits for the replica to end the connection; whatever it still sends is read."""
        with suppress(ConnectionError):
            async with asyncio.timeout(BOUND_SECONDS):
                while await self.reader.read(2**16):
                    pass
        return True

    def leave(self) -> None:
        self.writer.transport.abort()
