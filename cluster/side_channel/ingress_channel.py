"""The ingress's end of one side channel."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from cluster.api.engine_call import ReplicaLost
from replica.messages import TokenChunk
from replica.side_channel import answer_codec
from replica.side_channel.frames import MAX_FRAME_BYTES, BadFrame, FrameReader, framed
from replica.side_channel.handshake import MAX_HANDSHAKE_FRAME_BYTES, BadHandshake, IngressHandshake
from replica.side_channel.sockets import watch_peer


class ChannelLost(ReplicaLost):
    """The connection ended; whether the replica did is not known yet."""


class Inbox:
    """What one request got over the channel and nobody has taken yet."""

    def __init__(self) -> None:
        self._items: deque[list[TokenChunk]] = deque()
        self._changed = asyncio.Event()
        self._end: BaseException | None = None

    def put(self, chunks: list[TokenChunk]) -> None:
        self._items.append(chunks)
        self._changed.set()

    def end(self, error: BaseException) -> None:
        """Nothing more will come; `error` is raised after everything that came before it."""
        self._end = self._end or error
        self._changed.set()

    async def next(self) -> list[TokenChunk]:
        """All that is there, joined; waits for the first. An empty list says that the replica took the request."""
        while not self._items:
            if self._end is not None:
                raise self._end
            self._changed.clear()
            await self._changed.wait()
        chunks = [chunk for item in self._items for chunk in item]
        self._items.clear()
        return chunks


class IngressChannel(asyncio.Protocol):
    """Open once the replica has proven that it knows the cluster's secret. `opened` fails where it does not."""

    def __init__(self, handshake: IngressHandshake, on_lost: Callable[["IngressChannel"], None]):
        """on_lost: called when an open channel has ended."""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._handshake = handshake
        self._on_lost = on_lost
        self._reader = FrameReader(MAX_HANDSHAKE_FRAME_BYTES)
        self._on_frame = self._answer_challenge
        self._inboxes: dict[str, Inbox] = {}
        self._transport: asyncio.Transport | None = None

    @property
    def channel_id(self) -> bytes:
        return self._handshake.channel_id

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self.opened.done() and not self._transport.is_closing()

    def follow(self, request_id: str) -> Inbox:
        """What comes for this request goes there until `leave`."""
        inbox = self._inboxes[request_id] = Inbox()
        if not self.is_open:
            inbox.end(_lost())
        return inbox

    def leave(self, request_id: str) -> None:
        self._inboxes.pop(request_id, None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        watch_peer(transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (frame := self._reader.next_frame()) is not None:
                self._on_frame(frame)
        except (BadFrame, BadHandshake) as error:
            self._fail_opening(error)
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.opened.done():
            self._fail_opening(BadHandshake("the replica closed the connection during the handshake"))
            return
        for inbox in self._inboxes.values():
            inbox.end(_lost())
        self._on_lost(self)

    def _answer_challenge(self, frame: bytes) -> None:
        answer = self._handshake.answer(frame)
        self._on_frame = self._check_proof
        if self._transport is not None:
            self._transport.write(framed(answer))

    def _check_proof(self, frame: bytes) -> None:
        self._handshake.check(frame)
        self._reader.max_bytes = MAX_FRAME_BYTES
        self._on_frame = self._dispatch
        if not self.opened.done():
            self.opened.set_result(None)

    def _dispatch(self, frame: bytes) -> None:
        for request_id, chunks in answer_codec.decode(frame):
            inbox = self._inboxes.get(request_id)
            if inbox is not None:  # else whoever asked has left
                inbox.put(chunks)

    def _fail_opening(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)


def _lost() -> ChannelLost:
    return ChannelLost("The connection to the replica that computed this request was lost.")
