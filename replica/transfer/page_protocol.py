"""What goes over a connection for pages, behind the handshake.

holder -> puller   Ready (over a local socket with the file descriptor of its slots)
puller -> holder   Ask
holder -> puller   for each key Page, and its bytes: behind it, or in the next slot; or End, and nothing more
puller -> holder   one byte for each slot that it has read; nothing where there are no slots

Instead of Ask the puller may say AskHottest, answered by Hottest, or Offer, answered by Taken once the holder has
pulled what it wants of that from the address in the offer.
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
MAX_HOT_BLOCKS = 65_536
MAX_HOT_FRAME_BYTES = MAX_HOT_BLOCKS * (KEY_BYTES + 3) + 512
"""Of Hottest and Offer: keys, each in a page of its own at worst."""
MAX_IDENTITY_BYTES = 64


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """num_slots: in the shared memory whose descriptor comes along; 0: bytes come over the connection."""

    page_bytes: int
    num_slots: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    identity: bytes
    keys: list[BlockKey]


class AskHottest(msgspec.Struct, frozen=True, tag="ask_hottest"):
    """max_pages: so many at most, the most used first."""

    identity: bytes
    max_pages: int


class Hottest(msgspec.Struct, frozen=True, tag="hottest"):
    """Each page by the keys of its blocks."""

    pages: list[list[BlockKey]]


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """These may be had from the replica that listens at `pages_at` (`PageAddress.to_text`), which is about to end."""

    identity: bytes
    replica_id: str
    pages_at: str
    pages: list[list[BlockKey]]


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    num_pages: int


class Page(msgspec.Struct, frozen=True, tag="page"):
    checksum: int


class End(msgspec.Struct, frozen=True, tag="end"):
    """In the place of a page, or of Ready: there are no more, for this cause."""

    end: PullEnd


Said = TypeVar("Said")

_ask = msgspec.msgpack.Decoder(Ask | AskHottest | Offer)
_hottest = msgspec.msgpack.Decoder(Hottest)
_taken = msgspec.msgpack.Decoder(Taken)
_greeting = msgspec.msgpack.Decoder(Ready | End)
_answer = msgspec.msgpack.Decoder(Page | End)
_SAID_BY_PEERS = {PullEnd.MISSING, PullEnd.OTHER_IDENTITY, PullEnd.BUSY}


def ask_of(payload: bytes) -> Ask | AskHottest | Offer:
    """Raises BadFrame, also for one whose values are out of bounds."""
    ask = unpacked(_ask, payload)
    if len(ask.identity) > MAX_IDENTITY_BYTES:
        raise BadFrame(f"an identity of {len(ask.identity)} bytes")
    if isinstance(ask, Ask):
        if len(ask.keys) > MAX_PAGES_PER_ASK:
            raise BadFrame(f"an ask holds {len(ask.keys)} keys")
        _check_keys(ask.keys)
    elif isinstance(ask, Offer):
        _check_pages(ask.pages)
    elif not 0 <= ask.max_pages <= MAX_HOT_BLOCKS:
        raise BadFrame(f"{ask.max_pages} pages are wanted")
    return ask


def hottest_of(payload: bytes) -> Hottest:
    """Raises BadFrame."""
    found = unpacked(_hottest, payload)
    _check_pages(found.pages)
    return found


def taken_of(payload: bytes) -> Taken:
    """Raises BadFrame."""
    return unpacked(_taken, payload)


def _check_pages(pages: list[list[BlockKey]]) -> None:
    if not all(pages):
        raise BadFrame("a page without blocks")
    for keys in pages:
        _check_keys(keys)


def _check_keys(keys: list[BlockKey]) -> None:
    if any(len(key) != KEY_BYTES for key in keys):
        raise BadFrame(f"a key must have {KEY_BYTES} bytes")


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
