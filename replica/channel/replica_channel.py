"""The replica's end of one side channel."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from replica.channel import codec
from replica.channel.frames import MAX_FRAME_BYTES, BadFrame, FrameReader, framed, watch_peer
from replica.channel.handshake import MAX_HANDSHAKE_FRAME_BYTES, BadHandshake, ListeningHandshake
from replica.channel.response_streams import Generate, ResponseStreams

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelBounds:
    """handshake_seconds: for a new connection to prove itself. buffer_bytes: what may wait to be sent before requests
    stop taking tokens from the engine. stalled_seconds: an ingress that reads nothing for so long is given up.
    """

    handshake_seconds: float = 5.0
    buffer_bytes: int = 2**20
    stalled_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("handshake_seconds", "buffer_bytes", "stalled_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


class ReplicaChannel(asyncio.Protocol):
    """Nothing is sent before the ingress has proven itself, and no request is taken before Ray holds the channel.

    What is sent within one turn of the event loop, which is what one engine step gave to all requests, leaves in one
    write. When the connection ends, so do its requests: their ingress is gone.
    """

    def __init__(
        self,
        handshake: ListeningHandshake,
        generate: Generate,
        bounds: ChannelBounds,
        on_change: Callable[["ReplicaChannel"], None],
    ):
        """generate: the engine's. on_change: called when it is connected, proven and closed."""
        self.channel_id: bytes | None = None
        """What the ingress calls it; None until it has proven itself."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handshake = handshake
        self._bounds = bounds
        self._on_change = on_change
        self._streams = ResponseStreams(generate, self._send, self._wait_writable)
        self._reader = FrameReader(MAX_HANDSHAKE_FRAME_BYTES)
        self._on_frame = self._check_proof
        self._queued: list[codec.FromReplica] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_requests(self) -> int:
        return len(self._streams)

    def hold(self) -> None:
        """Ray counts this channel from now on, so a replica that stops waits for it."""
        if self._on_frame != self._take:
            self._on_frame = self._take
            self._send(codec.Held())

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._loop = asyncio.get_running_loop()
        watch_peer(transport)
        self._transport.set_write_buffer_limits(high=self._bounds.buffer_bytes)
        self._transport.write(framed(self._handshake.challenge))
        self._timer = self._loop.call_later(self._bounds.handshake_seconds, self._give_up, "no proof came in time")
        self._on_change(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (frame := self._reader.next_frame()) is not None:
                self._on_frame(frame)
        except (BadFrame, BadHandshake) as error:
            self._give_up(str(error))

    def pause_writing(self) -> None:
        self._writable.clear()
        self._timer = self._loop.call_later(self._bounds.stalled_seconds, self._give_up, "the ingress reads nothing")

    def resume_writing(self) -> None:
        self._stop_timer()
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._writable.set()
        self.closed.set_result(None)
        self._on_change(self)
        if self.num_requests:
            logger.warning("a side channel ended (%r): %d requests are aborted", error, self.num_requests)
        self._streams.cancel_all()

    def _check_proof(self, frame: bytes) -> None:
        self.channel_id, proof = self._handshake.answer(frame)
        self._stop_timer()
        self._reader.max_bytes = MAX_FRAME_BYTES
        self._on_frame = self._refuse
        self._on_change(self)
        self._transport.write(framed(proof))

    def _refuse(self, frame: bytes) -> None:
        raise BadFrame("an ingress sent a request before Ray held its side channel")

    def _take(self, frame: bytes) -> None:
        message = codec.from_ingress(frame)
        if isinstance(message, codec.Start):
            self._streams.start(message.request.arrived())
        else:
            self._streams.cancel(message.request_id)

    def _send(self, message: codec.FromReplica) -> None:
        """At once, together with what else is sent in this turn of the event loop."""
        if not self._queued:
            self._loop.call_soon(self._flush)
        self._queued.append(message)

    def _flush(self) -> None:
        queued, self._queued = self._queued, []
        if not self.closed.done():
            self._transport.write(codec.encode(queued))

    async def _wait_writable(self) -> None:
        await self._writable.wait()

    def _give_up(self, reason: str) -> None:
        logger.warning("closing a side channel: %s", reason)
        self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
