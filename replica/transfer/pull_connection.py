"""The pulling end of one connection for pages."""

import os
import socket
from collections.abc import Callable, Sequence

from cache.block_hasher import BlockKey
from replica.channel.frames import framed, packed
from replica.channel.handshake import MAX_HANDSHAKE_FRAME_BYTES, PAGE_TRANSFER, BadHandshake, ConnectingHandshake
from replica.messages import PageAddress
from replica.transfer.page_protocol import (
    MAX_ANSWER_FRAME_BYTES,
    MAX_HOT_FRAME_BYTES,
    Ask,
    AskHottest,
    End,
    Offer,
    Page,
    answer_of,
    checksum,
    greeting_of,
    hottest_of,
    taken_of,
)
from replica.transfer.page_slots import PageReceiver, SlotReceiver, StreamReceiver, mapped_slots
from replica.transfer.timed_socket import TimedSocket
from replica.transfer.transfer import PullEnd


class PullStopped(Exception):
    """There will be no more pages."""

    def __init__(self, end: PullEnd, detail: str = ""):
        super().__init__(detail)
        self.end = end
        self.detail = detail


class PullConnection:
    """Asks, and takes one page after the other. Raises PullStopped, and what TimedSocket and the codec raise; after
    any of it but PullStopped for a page that is missing it is of no use any more."""

    def __init__(self, sock: TimedSocket, address: PageAddress, receiver: PageReceiver):
        self.address = address
        self._sock = sock
        self._receiver = receiver
        self._first: Page | End | None = None

    @classmethod
    def open(
        cls, address: PageAddress, secret: bytes, page_bytes: int, deadline: float, cancelled: Callable[[], bool]
    ) -> "PullConnection":
        sock = _connect(address, deadline, cancelled)
        try:
            _prove(sock, ConnectingHandshake(secret, address.replica_id, PAGE_TRANSFER))
            return cls(sock, address, _receiver(sock, page_bytes))
        except BaseException:
            sock.close()
            raise

    @property
    def is_dead(self) -> bool:
        """Of one that is idle. Whoever says something unasked is no better than one who is gone."""
        return self._sock.has_something_to_read

    def allow(self, deadline: float, cancelled: Callable[[], bool]) -> None:
        self._sock.deadline, self._sock.cancelled = deadline, cancelled

    def ask(self, identity: bytes, keys: Sequence[BlockKey]) -> None:
        """Waits for the first answer, so that a connection which died while it was idle shows it here."""
        self._sock.write(packed(Ask(identity, list(keys))))
        self._first = self._next_answer()

    def ask_hottest(self, identity: bytes, max_pages: int) -> list[tuple[BlockKey, ...]]:
        self._sock.write(packed(AskHottest(identity, max_pages)))
        return [tuple(keys) for keys in hottest_of(self._sock.read_frame(MAX_HOT_FRAME_BYTES)).pages]

    def offer(self, identity: bytes, source: PageAddress, pages: Sequence[Sequence[BlockKey]]) -> int:
        """Waits until the peer has taken what it wants; how many pages that was."""
        offered = Offer(identity, source.replica_id, source.to_text(), [list(page) for page in pages])
        self._sock.write(packed(offered))
        return taken_of(self._sock.read_frame(MAX_ANSWER_FRAME_BYTES)).num_pages

    def next_page(self, key: BlockKey) -> memoryview:
        """Whole and with the right checksum; valid until `give_back`."""
        answer, self._first = self._first or self._next_answer(), None
        if isinstance(answer, End):
            raise PullStopped(answer.end, "the peer says so")
        blob = self._receiver.receive()
        if checksum(key, blob) != answer.checksum:
            raise PullStopped(PullEnd.CORRUPT, f"a page has not the checksum {answer.checksum:x}")
        return blob

    def give_back(self) -> None:
        self._receiver.give_back()

    def close(self) -> None:
        self._sock.close()

    def _next_answer(self) -> Page | End:
        return answer_of(self._sock.read_frame(MAX_ANSWER_FRAME_BYTES))


def _connect(address: PageAddress, deadline: float, cancelled: Callable[[], bool]) -> TimedSocket:
    if address.local:
        try:
            return TimedSocket.connect(socket.AF_UNIX, "\0" + address.local, deadline, cancelled)
        except TimeoutError:
            raise
        except OSError:
            pass  # nobody has that name on this node
    try:
        family, *_, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        sock = TimedSocket.connect(family, place, deadline, cancelled)
    except TimeoutError:
        raise
    except OSError as error:
        raise PullStopped(PullEnd.UNREACHABLE, str(error)) from error
    sock.watch_peer()
    return sock


def _prove(sock: TimedSocket, handshake: ConnectingHandshake) -> None:
    sock.write(framed(handshake.answer(sock.read_frame(MAX_HANDSHAKE_FRAME_BYTES))))
    try:
        proof = sock.read_frame(MAX_HANDSHAKE_FRAME_BYTES)
    except ConnectionError as error:
        raise BadHandshake(f"the holder does not believe this replica: {error}") from error
    handshake.check(proof)


def _receiver(sock: TimedSocket, page_bytes: int) -> PageReceiver:
    frame, descriptors = sock.read_frame_with_descriptors(MAX_ANSWER_FRAME_BYTES)
    try:
        ready = greeting_of(frame)
        if isinstance(ready, End):
            raise PullStopped(ready.end, "the peer takes no more connections")
        if ready.page_bytes != page_bytes:
            raise PullStopped(
                PullEnd.OTHER_IDENTITY, f"the peer's pages have {ready.page_bytes} bytes, ours {page_bytes}"
            )
        if not ready.num_slots and not descriptors:
            return StreamReceiver(sock, page_bytes)
        return SlotReceiver(sock, mapped_slots(descriptors, ready.num_slots, page_bytes))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
