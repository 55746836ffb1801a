"""Answers as bytes: what several requests got since the last write, in one frame."""

from collections.abc import Sequence

import msgspec

from replica.messages import TokenChunk
from replica.side_channel.frames import BadFrame, framed

Item = tuple[str, list[TokenChunk]]
"""A request's id and its new chunks; no chunks say that the replica has taken the request."""

_decoder = msgspec.msgpack.Decoder(list[Item])
_encoder = msgspec.msgpack.Encoder()


def encode(items: Sequence[Item]) -> bytes:
    """One whole frame."""
    return framed(_encoder.encode(items))


def decode(payload: bytes) -> list[Item]:
    """Raises BadFrame for anything that `encode` does not write."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadFrame(f"a frame holds no answers: {error}") from error
