"""Pages of tests: made from their keys, so that every page that arrives can be compared with the source's."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from cache.block_hasher import BlockKey
from replica.messages import PageAddress
from replica.transfer.connections import PageServerBounds
from replica.transfer.page_puller import PagePuller
from replica.transfer.page_server import PageServer
from replica.transfer.transfer import PullEnd, PullResult, never
from tests.waiting import BOUND_SECONDS

SECRET, IDENTITY = b"0123456789abcdef", b"SmolLM2 float32"
PAGE_BYTES = 3 * 4096


def keys_of(num_pages: int, first: int = 0) -> list[BlockKey]:
    return [hashlib.blake2b(b"%d" % number, digest_size=16).digest() for number in range(first, first + num_pages)]


def blob_of(key: BlockKey, page_bytes: int = PAGE_BYTES) -> bytes:
    return (key * (page_bytes // len(key) + 1))[:page_bytes]


class Source:
    """Has every page but the `missing` ones, which may change; `before_read` is called in the serving thread."""

    def __init__(self, page_bytes: int = PAGE_BYTES, identity: bytes = IDENTITY, missing: Iterable[BlockKey] = ()):
        self.page_bytes, self.identity, self.missing = page_bytes, identity, set(missing)
        self.num_reads = 0
        self.before_read: Callable[[BlockKey], None] = lambda key: None
        self.hot: list[tuple[BlockKey, ...]] = []
        self.offers: list[tuple[PageAddress, list[list[BlockKey]]]] = []
        self._lock = threading.Lock()

    def hottest(self, max_pages: int) -> list[tuple[BlockKey, ...]]:
        return self.hot[:max_pages]

    def offered(self, source: PageAddress, pages: list[list[BlockKey]]) -> int:
        self.offers.append((source, pages))
        return len(pages)

    def read_page(self, key: BlockKey, target: memoryview) -> bool:
        with self._lock:
            self.num_reads += 1
        self.before_read(key)
        if key in self.missing:
            return False
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(blob_of(key, self.page_bytes), np.uint8))
        return True


class Taker:
    """Takes pages, each of which must be the source's; declines the one at `decline`."""

    def __init__(self, keys: list[BlockKey], page_bytes: int = PAGE_BYTES, decline: int = -1):
        self.keys, self.page_bytes, self.decline = keys, page_bytes, decline
        self.positions: list[int] = []

    def __call__(self, position: int, blob: memoryview) -> bool:
        if position == self.decline:
            return False
        assert bytes(blob) == blob_of(self.keys[position], self.page_bytes)
        self.positions.append(position)
        return True


@contextmanager
def serving(
    source: Source | None = None, bounds: PageServerBounds | None = None, secret: bytes = SECRET
) -> Iterator[PageServer]:
    server = PageServer(secret, "a", source or Source(), "127.0.0.1", bounds)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def pulling(
    secret: bytes = SECRET, identity: bytes = IDENTITY, page_bytes: int = PAGE_BYTES, max_kept: int = 8
) -> Iterator[PagePuller]:
    puller = PagePuller(secret, identity, page_bytes, max_kept)
    try:
        yield puller
    finally:
        puller.close()


def pull(
    puller: PagePuller,
    address: PageAddress,
    keys: list[BlockKey],
    taker: Taker | None = None,
    seconds: float = BOUND_SECONDS,
    cancelled: Callable[[], bool] = never,
) -> PullResult:
    """Checks what holds of every pull: pages come in order, bit for bit, and the result says how many were taken."""
    taker = taker or Taker(keys)
    result = puller.pull(address, keys, taker, time.monotonic() + seconds, cancelled)
    assert taker.positions == list(range(result.num_pages))
    assert result.num_bytes == result.num_pages * taker.page_bytes
    assert (result.end is PullEnd.COMPLETE) == (result.num_pages == len(keys))
    return result


def over_tcp(address: PageAddress) -> PageAddress:
    """As a peer on another node sees it."""
    return replace(address, local="")


def over_local_socket(address: PageAddress) -> PageAddress:
    """Nothing listens on its port, so that TCP is no way out."""
    return replace(address, port=1)
