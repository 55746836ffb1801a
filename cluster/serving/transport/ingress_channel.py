"""The ingress's end of one side channel."""

import asyncio
from collections.abc import Callable
from typing import cast

from cluster.api.engine_call import ReplicaLost
from cluster.serving.transport.inbox import Inbox
from replica.channel import codec
from replica.channel.frames import MAX_FRAME_BYTES, BadFrame, FrameReader, framed, watch_peer
from replica.channel.handshake import MAX_HANDSHAKE_FRAME_BYTES, BadHandshake, ConnectingHandshake
from replica.messages import GenerateRequest


class ChannelLost(ReplicaLost):
    """The connection ended; whether the replica did is not known yet."""


class IngressChannel(asyncio.Protocol):
    """`proven` ends when the replica has shown that it knows the secret, `held` when it takes requests."""

    def __init__(self, handshake: ConnectingHandshake, on_lost: Callable[["IngressChannel"], None]):
        """on_lost: called when a channel that was held has ended."""
        loop = asyncio.get_running_loop()
        self.proven: asyncio.Future[None] = loop.create_future()
        self.held: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._handshake = handshake
        self._on_lost = on_lost
        self._reader = FrameReader(MAX_HANDSHAKE_FRAME_BYTES)
        self._on_frame = self._answer_challenge
        self._inboxes: dict[str, Inbox] = {}
        self._transport: asyncio.Transport | None = None
        self._retired = False

    @property
    def channel_id(self) -> bytes:
        return self._handshake.channel_id

    @property
    def is_usable(self) -> bool:
        return self.held.done() and self._transport is not None and not self._transport.is_closing()

    def send(self, request: GenerateRequest) -> Inbox:
        """Raises ChannelLost."""
        if self._transport is None or not self.is_usable:
            raise lost()
        request_id = request.request_id
        inbox = self._inboxes[request_id] = Inbox(lambda must_cancel: self._forget(request_id, must_cancel))
        self._transport.write(codec.encode(codec.Start(request.leaving())))
        return inbox

    def retire(self) -> None:
        """Closes when the last answer has ended: the replica is being stopped and waits for that."""
        self._retired = True
        self._close_if_over()

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
        self.closed.set_result(None)
        if not self.held.done():
            self._fail_opening(BadHandshake("the replica closed the connection before it took requests"))
            return
        for inbox in list(self._inboxes.values()):
            inbox.end(lost())
        if not self._retired:
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
        self.proven.set_result(None)

    def _dispatch(self, frame: bytes) -> None:
        for message in codec.from_replica(frame):
            if isinstance(message, codec.Held):
                if not self.held.done():
                    self.held.set_result(None)
            elif (inbox := self._inboxes.get(message.request_id)) is None:
                continue  # whoever asked has left
            elif isinstance(message, codec.Answered):
                inbox.put(message.chunks)
            else:
                inbox.end(message.error)

    def _forget(self, request_id: str, must_cancel: bool) -> None:
        self._inboxes.pop(request_id, None)
        if must_cancel and self._transport is not None and self.is_usable:
            self._transport.write(codec.encode(codec.Cancel(request_id)))
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self._retired and not self._inboxes and self._transport is not None:
            self._transport.close()  # after what is still to be written

    def _fail_opening(self, error: Exception) -> None:
        for future in (self.proven, self.held):
            if not future.done():
                future.set_exception(error)
                future.exception()  # read here, where nobody may wait for it


def lost() -> ChannelLost:
    return ChannelLost("The connection to the replica that computed this request was lost.")
