"""How bytes go over a connection: the socket's settings, and typed frames with their length before them."""

import asyncio
import socket
from typing import TypeVar

import msgspec

_IDLE_SECONDS, _INTERVAL_SECONDS, _PROBES = 10, 5, 3
MAX_FRAME_BYTES = 256 * 2**20
"""Far above any step's answers, and still a bound on what one broken length makes the reader hold."""
_PREFIX_BYTES = 4

Message = TypeVar("Message")
_encoder = msgspec.msgpack.Encoder()


def watch_peer(transport: asyncio.BaseTransport) -> None:
    watch_socket(transport.get_extra_info("socket"))


def watch_socket(sock: socket.socket) -> None:
    """The kernel ends a connection whose other machine has vanished; a process that dies ends it at once anyway."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Names as Linux has them; a system without them keeps its own times.
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", (_IDLE_SECONDS + _INTERVAL_SECONDS * _PROBES) * 1000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class BadFrame(ValueError):
    """The other end does not speak this protocol."""


class FrameReader:
    """Takes bytes as they come and gives whole frames. max_bytes may change between two frames."""

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def num_missing(self) -> int:
        """So many bytes at least until the next frame is whole, and none of those behind it."""
        held = len(self._buffer)
        if held < _PREFIX_BYTES:
            return _PREFIX_BYTES - held
        return _PREFIX_BYTES + int.from_bytes(self._buffer[:_PREFIX_BYTES], "big") - held

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """The next frame without its prefix, None while it is not whole. Raises BadFrame for one that is too long."""
        if len(self._buffer) < _PREFIX_BYTES:
            return None
        size = int.from_bytes(self._buffer[:_PREFIX_BYTES], "big")
        if size > self.max_bytes:
            raise BadFrame(f"a frame must have at most {self.max_bytes} bytes, got {size}")
        end = _PREFIX_BYTES + size
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[_PREFIX_BYTES:end])
        del self._buffer[:end]
        return frame


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(_PREFIX_BYTES, "big") + payload


def packed(message: object) -> bytes:
    """One whole frame that holds a msgspec.Struct, or a list of some."""
    return framed(_encoder.encode(message))


def unpacked(decoder: "msgspec.msgpack.Decoder[Message]", payload: bytes) -> Message:
    """Raises BadFrame for anything that is not of the decoder's type."""
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadFrame(f"a frame holds no message of this protocol: {error}") from error
