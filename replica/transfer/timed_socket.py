"""A socket whose every call ends by a deadline."""

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from errno import EINPROGRESS
from typing import ParamSpec, TypeVar

from replica.channel.frames import FrameReader, watch_socket
from replica.transfer.transfer import never

_LOOK_SECONDS = 0.05
"""So often who waits asks whether it is cancelled."""

P = ParamSpec("P")
T = TypeVar("T")


class Cancelled(Exception):
    """Whoever waited does not want this any more."""


class TimedSocket:
    """Reads exactly what it is asked for, so that raw bytes may follow a frame. Belongs to one thread, but for `shut`.

    All calls raise TimeoutError at the deadline, Cancelled, and another OSError where the connection is over.
    """

    def __init__(self, sock: socket.socket, deadline: float, cancelled: Callable[[], bool] = never):
        """deadline: on `time.monotonic`; this and `cancelled` may be set anew between two calls."""
        self.deadline = deadline
        self.cancelled = cancelled
        self._sock = sock
        self._ending = threading.Lock()

    @classmethod
    def connect(cls, family: int, address: object, deadline: float, cancelled: Callable[[], bool]) -> "TimedSocket":
        """address: as the family's sockets take it, without a name that would have to be looked up."""
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            error = sock.connect_ex(address)  # type: ignore[arg-type]
            if error == EINPROGRESS:
                poll = select.poll()
                poll.register(sock, select.POLLOUT)
                while not poll.poll(_bound(deadline, cancelled) * 1000):
                    pass
                error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
        except BaseException:
            sock.close()
            raise
        return cls(sock, deadline, cancelled)

    def watch_peer(self) -> None:
        """Of a TCP connection."""
        watch_socket(self._sock)

    @property
    def has_something_to_read(self) -> bool:
        """Now; the end of the connection counts."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def read_into(self, target: memoryview) -> None:
        while target:
            target = target[_not_over(self._bounded(self._sock.recv_into, target)) :]

    def read_some(self, max_bytes: int) -> bytes:
        """One byte at least."""
        data = self._bounded(self._sock.recv, max_bytes)
        _not_over(len(data))
        return data

    def read_frame(self, max_bytes: int) -> bytes:
        """Raises BadFrame for one that is too long, before its bytes are read."""
        reader = FrameReader(max_bytes)
        while (frame := reader.next_frame()) is None:
            reader.feed(self.read_some(reader.num_missing))
        return frame

    def read_frame_with_descriptors(self, max_bytes: int) -> tuple[bytes, list[int]]:
        """Over a local socket descriptors of files may come along; they belong to the caller then."""
        reader, descriptors = FrameReader(max_bytes), list[int]()
        try:
            while (frame := reader.next_frame()) is None:
                data, came, _, _ = self._bounded(
                    socket.recv_fds, self._sock, reader.num_missing, 1, socket.MSG_CMSG_CLOEXEC
                )
                descriptors += came
                _not_over(len(data))
                reader.feed(data)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return frame, descriptors

    def write(self, *parts: bytes | memoryview) -> None:
        left = [memoryview(part) for part in parts]
        while left:
            sent = self._bounded(self._sock.sendmsg, left)
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if left:
                left[0] = left[0][sent:]

    def write_with_descriptor(self, frame: bytes, descriptor: int) -> None:
        sent = self._bounded(socket.send_fds, self._sock, [frame], [descriptor])
        self.write(frame[sent:])

    def shut(self) -> None:
        """From any thread: ends what waits in this socket."""
        with self._ending, suppress(OSError):  # over already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._ending:  # else `shut` could meet another file that has got the same number
            self._sock.close()

    def _bounded(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            self._sock.settimeout(_bound(self.deadline, self.cancelled))
            try:
                return call(*args, **kwargs)
            except TimeoutError as error:
                if error.errno is not None:  # the kernel's own: the other machine has vanished
                    raise ConnectionAbortedError(str(error)) from error


def _bound(deadline: float, cancelled: Callable[[], bool]) -> float:
    """Seconds that one call may wait."""
    if cancelled():
        raise Cancelled
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return min(left, _LOOK_SECONDS)


def _not_over(num_bytes: int) -> int:
    if not num_bytes:
        raise ConnectionResetError("the other end closed the connection")
    return num_bytes
