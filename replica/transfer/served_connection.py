"""The giving end of one connection for pages."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cache.block_hasher import BlockKey
from replica.channel.frames import BadFrame, framed, packed
from replica.channel.handshake import MAX_HANDSHAKE_FRAME_BYTES, PAGE_TRANSFER, BadHandshake, ListeningHandshake
from replica.messages import PageAddress
from replica.transfer.connections import Connections, PageServerBounds
from replica.transfer.page_protocol import (
    MAX_HOT_BLOCKS,
    MAX_HOT_FRAME_BYTES,
    Ask,
    AskHottest,
    End,
    Hottest,
    Offer,
    Page,
    Ready,
    Taken,
    ask_of,
    checksum,
)
from replica.transfer.page_slots import PageSender, SlotSender, StreamSender, new_slots
from replica.transfer.rate_limit import RateLimit
from replica.transfer.timed_socket import TimedSocket
from replica.transfer.transfer import PageSource, PullEnd

logger = logging.getLogger(__name__)

STALLED = "stalled"
"""The cause of a pull that ended because nobody took its pages."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What all connections of one server share."""

    secret: bytes
    replica_id: str
    source: PageSource
    bounds: PageServerBounds
    connections: Connections
    rate: RateLimit
    stopping: threading.Event


class ServedConnection:
    """Nothing is sent before the other end has proven itself. Runs in a thread of its own to the connection's end."""

    def __init__(
        self, sock: TimedSocket, is_local: bool, serving: Serving, on_end: Callable[["ServedConnection"], None]
    ):
        """is_local: the other end is on this node, so that memory can be shared."""
        self.idle_since: float | None = None
        self._sock = sock
        self._is_local = is_local
        self._serving = serving
        self._on_end = on_end

    def shut(self) -> None:
        self._sock.shut()

    def run(self) -> None:
        failure = str(PullEnd.UNPROVEN)
        try:
            self._prove()
            failure = ""
            if self._serving.connections.admit(self):
                sender = self._greet()
                while (ask := self._next_ask()) is not None:
                    if isinstance(ask, Ask):
                        self._answer(ask, sender)
                    else:
                        self._answer_other(ask)
            else:
                failure = PullEnd.BUSY
                self._sock.write(packed(End(PullEnd.BUSY)))
        except (BadHandshake, BadFrame) as error:
            failure = failure or PullEnd.MALFORMED
            logger.warning("closing a connection for pages: %s", error)
        except OSError as error:  # a pull that it broke off has been counted
            logger.debug("a connection for pages ended: %s", error)
        finally:
            self._serving.connections.end(self, failure)
            self._sock.close()
            self._on_end(self)

    def _prove(self) -> None:
        handshake = ListeningHandshake(self._serving.secret, self._serving.replica_id, PAGE_TRANSFER)
        self._sock.write(framed(handshake.challenge))
        _, proof = handshake.answer(self._sock.read_frame(MAX_HANDSHAKE_FRAME_BYTES))
        self._sock.write(framed(proof))

    def _greet(self) -> PageSender:
        self._allow(self._serving.bounds.stalled_seconds)
        page_bytes, num_slots = self._serving.source.page_bytes, self._serving.bounds.num_slots
        if self._is_local:
            try:
                descriptor, slots = new_slots(num_slots, page_bytes)
            except OSError as error:
                logger.warning("pages go over a local socket, without shared memory: %s", error)
            else:
                try:
                    self._sock.write_with_descriptor(packed(Ready(page_bytes, num_slots)), descriptor)
                finally:
                    os.close(descriptor)
                return SlotSender(self._sock, slots)
        self._sock.write(packed(Ready(page_bytes, 0)))
        return StreamSender(self._sock, page_bytes)

    def _next_ask(self) -> Ask | AskHottest | Offer | None:
        """None where the other end is done, or asks for nothing for too long."""
        self.idle_since = time.monotonic()
        self._allow(self._serving.bounds.idle_seconds)
        try:
            return ask_of(self._sock.read_frame(MAX_HOT_FRAME_BYTES))
        except OSError:
            return None
        finally:
            self.idle_since = None

    def _answer(self, ask: Ask, sender: PageSender) -> None:
        num_pages, failure = 0, str(PullEnd.LOST)
        try:
            failing = self._refusal(ask)
            for key in ask.keys if failing is None else ():
                if not self._send_page(key, sender):
                    failing = PullEnd.MISSING
                    break
                num_pages += 1
            if failing is not None:
                self._sock.write(packed(End(failing)))
            sender.settle()
            failure = failing or ""
        except TimeoutError:
            failure = STALLED
            raise
        finally:
            num_bytes = num_pages * self._serving.source.page_bytes
            self._serving.connections.count_pull(num_pages, num_bytes, failure)

    def _answer_other(self, ask: AskHottest | Offer) -> None:
        source, is_ours = self._serving.source, self._refusal(ask) is None
        answer: Hottest | Taken
        if isinstance(ask, AskHottest):
            answer = Hottest(_at_most(source.hottest(ask.max_pages), MAX_HOT_BLOCKS) if is_ours else [])
        else:
            taken = 0
            if is_ours and not self._serving.stopping.is_set():
                taken = source.offered(_address(ask), ask.pages)
            answer = Taken(taken)
        self._allow(self._serving.bounds.stalled_seconds)
        self._sock.write(packed(answer))

    def _refusal(self, ask: Ask | AskHottest | Offer) -> PullEnd | None:
        return None if ask.identity == self._serving.source.identity else PullEnd.OTHER_IDENTITY

    def _send_page(self, key: BlockKey, sender: PageSender) -> bool:
        self._allow(self._serving.bounds.stalled_seconds)
        target = sender.target()
        if not self._read(key, target):
            return False
        page = Page(checksum(key, target))
        if self._serving.stopping.wait(self._serving.rate.reserve(len(target))):
            raise ConnectionAbortedError("this replica stops giving pages away")
        self._allow(self._serving.bounds.stalled_seconds)
        sender.send(page)
        return True

    def _read(self, key: BlockKey, target: memoryview) -> bool:
        try:
            return self._serving.source.read_page(key, target)
        except Exception:
            logger.exception("a page could not be read; it counts as missing")
            return False

    def _allow(self, seconds: float) -> None:
        self._sock.deadline = time.monotonic() + seconds


def _address(offer: Offer) -> PageAddress:
    try:
        return PageAddress.from_text(offer.replica_id, offer.pages_at)
    except ValueError as error:
        raise BadFrame(f"no address of pages: {error}") from error


def _at_most(pages: Sequence[Sequence[BlockKey]], max_blocks: int) -> list[list[BlockKey]]:
    found: list[list[BlockKey]] = []
    for page in pages:
        max_blocks -= len(page)
        if max_blocks < 0:
            break
        found.append(list(page))
    return found
