"""What goes over a connection for pages, behind the handshake.

holder -> puller   Ready (over a local socket with the file descriptor of its slots)
puller -> holder   Ask
holder -> puller   for each key Page, and its bytes: behind it, or in the next slot; or End, and nothing more
puller -> holder   one byte for each slot that it has read; nothing where there are no slots
"""

from typing import TypeVar

import msgspec
import xxhash

from cache.block_hasher import KEY_BYTES, BlockKey
from replica.channel.frames import BadFrame, unpacked
from replica.transfer.transfer import PullEnd

MAX_PAGES_PER_ASK = 1024
"""Longer chains are asked for in several parts."""
MAX_ASK_FRAME_BYTES = MAX_PAGES_PER_ASK * (KEY_BYTES + 2) + 512
MAX_ANSWER_FRAME_BYTES = 128
MAX_IDENTITY_BYTES = 64


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """num_slots: in the shared memory whose descriptor comes along; 0: bytes come over the connection."""

    page_bytes: int
    num_slots: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    identity: bytes
    keys: list[BlockKey]


class Page(msgspec.Struct, frozen=True, tag="page"):
    checksum: int


class End(msgspec.Struct, frozen=True, tag="end"):
    """In the place of a page, or of Ready: there are no more, for this cause."""

    end: PullEnd


Said = TypeVar("Said")

_ask = msgspec.msgpack.Decoder(Ask)
_greeting = msgspec.msgpack.Decoder(Ready | End)
_answer = msgspec.msgpack.Decoder(Page | End)
_SAID_BY_PEERS = {PullEnd.MISSING, PullEnd.OTHER_IDENTITY, PullEnd.BUSY}


def ask_of(payload: bytes) -> Ask:
    """Raises BadFrame, also for one whose values are out of bounds."""
    ask = unpacked(_ask, payload)
    if len(ask.keys) > MAX_PAGES_PER_ASK or len(ask.identity) > MAX_IDENTITY_BYTES:
        raise BadFrame(f"an ask holds {len(ask.keys)} keys and an identity of {len(ask.identity)} bytes")
    if any(len(key) != KEY_BYTES for key in ask.keys):
        raise BadFrame(f"a key must have {KEY_BYTES} bytes")
    return ask


def greeting_of(payload: bytes) -> Ready | End:
    """Raises BadFrame."""
    return _checked(unpacked(_greeting, payload))


def answer_of(payload: bytes) -> Page | End:
    """Raises BadFrame."""
    return _checked(unpacked(_answer, payload))


def _checked(message: Said) -> Said:
    if isinstance(message, End) and message.end not in _SAID_BY_PEERS:
        raise BadFrame(f"no peer says that a pull is {message.end}")
    return message


def checksum(key: BlockKey, blob: memoryview) -> int:
    """Of a page in its place: a page that comes under another's key does not fit. It finds faults, no forgery."""
    return xxhash.xxh3_64_intdigest(blob, seed=int.from_bytes(key[:8], "big"))
