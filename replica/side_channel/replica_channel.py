"""The replica's end of one side channel."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from replica.errors import ChannelClosed
from replica.messages import TokenChunk
from replica.side_channel import answer_codec
from replica.side_channel.frames import BadFrame, FrameReader, framed
from replica.side_channel.handshake import MAX_HANDSHAKE_FRAME_BYTES, BadHandshake, ReplicaHandshake
from replica.side_channel.sockets import watch_peer

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
    """Nothing is sent before the ingress has proven itself, and nothing but that proof is ever read.

    What is sent within one turn of the event loop, which is what one engine step gave to all requests, leaves in one
    write. When the connection ends, so do the requests that are answered over it: their ingress is gone.
    """

    def __init__(self, handshake: ReplicaHandshake, bounds: ChannelBounds, on_open: Callable[["ReplicaChannel"], None],
                 on_closed: Callable[["ReplicaChannel"], None]):  # fmt: skip
        """on_open: called once the ingress has proven itself; on_closed: when the connection has ended."""
        self.channel_id: bytes | None = None
        """What the ingress calls it; None until it has proven itself."""
        self._handshake = handshake
        self._bounds = bounds
        self._on_open = on_open
        self._on_closed = on_closed
        self._reader = FrameReader(MAX_HANDSHAKE_FRAME_BYTES)
        self._queued: list[answer_codec.Item] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = False
        self._answering: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While the calling task answers a request; it is cancelled, and ChannelClosed is raised, when the ingress goes
        away."""
        task = asyncio.current_task()
        if task is None or self._closed:
            raise ChannelClosed("the side channel is closed")
        self._answering.add(task)
        try:
            yield
        except asyncio.CancelledError as error:
            if task in self._answering:
                raise
            task.uncancel()
            raise ChannelClosed("the ingress closed its side channel") from error
        finally:
            self._answering.discard(task)

    def send(self, request_id: str, chunks: list[TokenChunk]) -> None:
        """At once, together with what others send in this turn of the event loop."""
        if not self._queued:
            self._loop.call_soon(self._flush)
        self._queued.append((request_id, chunks))

    async def drain(self) -> None:
        """Waits while the ingress does not keep up; what a request gets meanwhile piles up in the engine."""
        await self._writable.wait()

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._loop = asyncio.get_running_loop()
        watch_peer(transport)
        self._transport.set_write_buffer_limits(high=self._bounds.buffer_bytes)
        self._transport.write(framed(self._handshake.challenge))
        self._timer = self._loop.call_later(self._bounds.handshake_seconds, self._give_up, "no proof came in time")

    def data_received(self, data: bytes) -> None:
        if self.channel_id is not None:
            self._give_up("an ingress sent more than its proof")
            return
        try:
            self._reader.feed(data)
            frame = self._reader.next_frame()
            if frame is None:
                return
            channel_id, proof = self._handshake.answer(frame)
        except (BadFrame, BadHandshake) as error:
            self._give_up(str(error))
            return
        self._stop_timer()
        self.channel_id = channel_id
        self._on_open(self)
        self._transport.write(framed(proof))

    def pause_writing(self) -> None:
        self._writable.clear()
        self._timer = self._loop.call_later(self._bounds.stalled_seconds, self._give_up, "the ingress reads nothing")

    def resume_writing(self) -> None:
        self._stop_timer()
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._closed = True
        self._writable.set()
        self._on_closed(self)
        tasks, self._answering = self._answering, set()
        for task in tasks:
            task.cancel()
        if tasks:
            logger.warning("a side channel ended (%r): %d requests are aborted", error, len(tasks))

    def _flush(self) -> None:
        queued, self._queued = self._queued, []
        if not self._closed:
            self._transport.write(answer_codec.encode(queued))

    def _give_up(self, reason: str) -> None:
        logger.warning("closing a side channel: %s", reason)
        self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
