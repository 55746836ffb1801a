"""A TCP connection to a real holder that delays, reorders, truncates, corrupts, repeats, hangs or dies on its way."""

import select
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from replica.messages import PageAddress

_HELD_SECONDS = 0.02


@dataclass(frozen=True)
class Fault:
    """What happens to the bytes that the holder sends, from byte number `at` of the connection on.

    kind: flip (one bit), drop, repeat, insert (`size` bytes each), swap (two pieces of `size` bytes), hold (they come
    late, with what follows), hang (nothing more comes), die (the connection ends)."""

    kind: str
    at: int
    size: int = 1

    def apply(self, data: bytes) -> bytes:
        """data: what begins at `at`."""
        head, tail = data[: self.size], data[self.size :]
        match self.kind:
            case "flip":
                return bytes([data[0] ^ 1]) + data[1:]
            case "drop":
                return tail
            case "repeat":
                return head + head + tail
            case "insert":
                return bytes(self.size) + data
            case "swap":
                return tail[: self.size] + head + tail[self.size :]
        return data


@contextmanager
def faulty_wire(holder: PageAddress, faults: Sequence[Fault]) -> Iterator[PageAddress]:
    """The address of the same holder, with these faults on each connection. faults: by their place, the first first."""
    listening = socket.create_server(("127.0.0.1", 0))
    sockets: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, far = listening.accept()[0], socket.create_connection((holder.host, holder.port))
                sockets.extend((near, far))
                threading.Thread(target=_relay, args=(near, far, ()), daemon=True).start()
                threading.Thread(target=_relay, args=(far, near, faults), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield replace(holder, port=listening.getsockname()[1], local="")
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def _relay(source: socket.socket, target: socket.socket, faults: Sequence[Fault]) -> None:
    left, position = list(faults), 0
    with suppress(OSError):
        while data := source.recv(2**16):
            while left and left[0].at < position + len(data):
                fault = left.pop(0)
                if fault.kind == "hang":
                    left.clear()
                    while source.recv(2**16):
                        pass
                    return
                start = max(fault.at - position, 0)
                if fault.kind == "die":
                    target.sendall(data[:start])
                    target.shutdown(socket.SHUT_RDWR)
                    return
                if fault.kind == "hold":
                    target.sendall(data[:start])
                    position, data = position + start, data[start:]
                    if select.select([source], [], [], _HELD_SECONDS)[0]:
                        data += source.recv(2**16)
                else:
                    data = data[:start] + fault.apply(data[start:])
            target.sendall(data)
            position += len(data)
        target.shutdown(socket.SHUT_RDWR)
