"""Length-prefixed frames out of a stream of bytes."""

MAX_FRAME_BYTES = 256 * 2**20
"""Far above any step's answers, and still a bound on what one broken length makes the reader hold."""
_PREFIX_BYTES = 4


class BadFrame(ValueError):
    """The other end does not speak this protocol."""


class FrameReader:
    """Takes bytes as they come and gives whole frames. max_bytes may change between two frames."""

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self._buffer = bytearray()

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
