"""How fields become bytes: the two halves that `records` and `snapshot` build their records from."""

import struct
from collections.abc import Iterable
from enum import IntEnum

from cache.block_hasher import KEY_BYTES, BlockKey

WIRE_VERSION = 4
"""Raised with each change of a record's bytes: a reader drops and counts what another version wrote, so while a cluster
is updated old and new processes see each other's blocks as unknown, never wrong."""
MAX_STRING_BYTES = 512
MAX_MEASURE = 1e18
"""Seconds, or tokens in a second: no real one comes near, and what is reckoned from several stays finite."""

_MAGIC = 0x57
_HEADER = struct.Struct("<BBB")


class RecordKind(IntEnum):
    EVENTS = 1
    REGISTRATION = 2
    HEARTBEAT = 3
    SNAPSHOT_SEQ = 4
    RESERVATIONS = 5
    POLICY = 6
    KEY_RANGE = 7


class WireError(ValueError):
    """The bytes are not a record of this version and kind."""


class RecordWriter:
    def __init__(self, kind: int):
        self._parts = [_HEADER.pack(_MAGIC, WIRE_VERSION, kind)]

    def pack(self, layout: str, *values: float | bytes) -> None:
        try:
            self._parts.append(struct.pack("<" + layout, *values))
        except struct.error as error:
            raise WireError(f"value out of range: {error}") from error

    def measure(self, value: float) -> None:
        """A duration or a rate, 0 to MAX_MEASURE."""
        self.pack("d", _checked_measure(value))

    def string(self, text: str) -> None:
        data = text.encode()
        if len(data) > MAX_STRING_BYTES:
            raise WireError(f"a string may have at most {MAX_STRING_BYTES} bytes, got {len(data)}")
        self.pack("H", len(data))
        self._parts.append(data)

    def keys(self, keys: Iterable[BlockKey]) -> None:
        keys = tuple(keys)
        if any(len(key) != KEY_BYTES for key in keys):
            raise WireError(f"a block key must have {KEY_BYTES} bytes")
        self.pack("I", len(keys))
        self._parts.extend(keys)

    def bytes(self) -> bytes:
        return b"".join(self._parts)


class RecordReader:
    def __init__(self, data: bytes, kind: int):
        self._data, self._at = data, 0
        magic, version, found = self.unpack("BBB")
        if magic != _MAGIC or version != WIRE_VERSION or found != kind:
            raise WireError(f"not a record of version {WIRE_VERSION} and kind {kind}: {magic}, {version}, {found}")

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise WireError(f"record ends after {len(self._data)} bytes, {end} wanted")
        data = self._data[self._at : end]
        self._at = end
        return data

    def unpack(self, layout: str) -> tuple[int, ...]:
        values: tuple[int, ...] = struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))
        return values

    def measure(self) -> float:
        """What `RecordWriter.measure` wrote."""
        (value,) = struct.unpack("<d", self.take(8))
        return _checked_measure(float(value))

    def string(self) -> str:
        (size,) = self.unpack("H")
        if size > MAX_STRING_BYTES:
            raise WireError(f"a string may have at most {MAX_STRING_BYTES} bytes, got {size}")
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise WireError("a string is not UTF-8") from error

    def keys(self) -> tuple[BlockKey, ...]:
        (count,) = self.unpack("I")
        data = self.take(count * KEY_BYTES)
        return tuple(data[start : start + KEY_BYTES] for start in range(0, len(data), KEY_BYTES))

    def end(self) -> None:
        if self._at != len(self._data):
            raise WireError(f"{len(self._data) - self._at} bytes behind the end of the record")


def _checked_measure(value: float) -> float:
    if not 0.0 <= value <= MAX_MEASURE:
        raise WireError(f"a measurement must be 0 to {MAX_MEASURE:g}, got {value}")
    return value
