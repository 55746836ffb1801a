"""Other ends of connections for pages that say what a test tells them to."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from replica.channel.frames import framed
from replica.channel.handshake import PAGE_TRANSFER, ConnectingHandshake, ListeningHandshake
from replica.messages import PageAddress
from replica.transfer.timed_socket import TimedSocket
from replica.transfer.transfer import never
from tests.replica.transfer.pages import SECRET
from tests.waiting import BOUND_SECONDS

Say = Callable[[TimedSocket], None]


def timed(sock: socket.socket) -> TimedSocket:
    return TimedSocket(sock, time.monotonic() + BOUND_SECONDS)


def until_closed(sock: TimedSocket) -> None:
    """TimeoutError where the other end does not close."""
    with suppress(ConnectionError):
        while True:
            sock.read_some(2**16)


@contextmanager
def raw_holder(say: Say, is_local: bool = False, proves: bool = True) -> Iterator[PageAddress]:
    """A holder that proves itself and then says this, on each connection anew; afterwards it closes."""
    name = f"warmlane-test-{time.monotonic_ns()}"
    listening = socket.socket(socket.AF_UNIX if is_local else socket.AF_INET)
    listening.bind("\0" + name if is_local else ("127.0.0.1", 0))
    listening.listen()
    taken: list[TimedSocket] = []

    def serve(sock: TimedSocket) -> None:
        with suppress(OSError):
            if proves:
                handshake = ListeningHandshake(SECRET, "a", PAGE_TRANSFER)
                sock.write(framed(handshake.challenge))
                sock.write(framed(handshake.answer(sock.read_frame(128))[1]))
            say(sock)
        sock.close()

    def accept() -> None:
        with suppress(OSError):
            while True:
                taken.append(timed(listening.accept()[0]))
                threading.Thread(target=serve, args=(taken[-1],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    port = 1 if is_local else listening.getsockname()[1]
    try:
        yield PageAddress("a", "127.0.0.1", port, name if is_local else "")
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()
        for sock in taken:
            sock.shut()


def raw_puller(address: PageAddress) -> TimedSocket:
    family, place = (
        (socket.AF_UNIX, "\0" + address.local) if address.local else (socket.AF_INET, (address.host, address.port))
    )
    return TimedSocket.connect(family, place, time.monotonic() + BOUND_SECONDS, never)


def prove(sock: TimedSocket) -> None:
    handshake = ConnectingHandshake(SECRET, "a", PAGE_TRANSFER)
    sock.write(framed(handshake.answer(sock.read_frame(128))))
    handshake.check(sock.read_frame(128))
