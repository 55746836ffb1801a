"""What a transfer of pages is, whatever carries it; NIXL or Mooncake's engine could stand behind the same names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from cache.block_hasher import BlockKey
from replica.messages import PageAddress


class PageSource(Protocol):
    """The pages that this replica can give away, in whichever tier they lie."""

    page_bytes: int
    """Of every page's blob."""
    identity: bytes
    """Digest of model, dtype and layout: equal ones mean that a blob of one end is a page of the other."""

    def read_page(self, key: BlockKey, target: memoryview) -> bool:
        """Copies the page whose last block has this key into `target` (page_bytes, writable); False where it is not
        there (any more). Called by several threads at once, beside the engine's steps: what copies must let go of the
        interpreter (np.copyto and torch's copy_ do, assigning to a slice of a memoryview does not)."""
        ...

    def hottest(self, max_pages: int) -> Sequence[Sequence[BlockKey]]:
        """Pages that were used more than once, by the keys of their blocks; the most used first. Any thread."""
        ...

    def offered(self, source: PageAddress, pages: Sequence[Sequence[BlockKey]]) -> int:
        """Another replica, which is about to end, would give these. Blocks; returns how many were taken. Any thread."""
        ...


class GivenPages(PageSource, Protocol):
    """A source that can be told to give nothing for a while."""

    def hold_back(self, seconds: float) -> None: ...

    def give_again(self) -> None: ...


class PullEnd(StrEnum):
    """Why a pull ended."""

    COMPLETE = "complete"
    MISSING = "missing"
    """The peer does not have the next page (any more)."""
    DECLINED = "declined"
    """`on_page` wanted no more."""
    CANCELLED = "cancelled"
    LATE = "late"
    """The deadline came first."""
    UNREACHABLE = "unreachable"
    """No connection could be opened."""
    UNPROVEN = "unproven"
    """The peer did not prove that it knows the secret and is this replica, or did not believe that we do."""
    OTHER_IDENTITY = "other_identity"
    """The peer's pages are of another model, dtype or layout."""
    BUSY = "busy"
    """The peer has as many connections as it takes."""
    LOST = "lost"
    """The connection broke in the middle."""
    CORRUPT = "corrupt"
    """A page's checksum did not fit its bytes and its key."""
    MALFORMED = "malformed"
    """The peer sent what this protocol does not have."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """num_pages: the leading pages that `on_page` took; what it took stays good whatever `end` says.
    num_bytes: of those pages. detail: the cause in words, for a log."""

    num_pages: int
    num_bytes: int
    seconds: float
    end: PullEnd
    detail: str = ""


OnPage = Callable[[int, memoryview], bool]
"""Takes position and blob, whose memory is written anew after the call. True: go on. False: this page was not taken."""


def never() -> bool:
    return False


class Transfer(Protocol):
    """The pulling end."""

    def pull(
        self,
        address: PageAddress,
        keys: Sequence[BlockKey],
        on_page: OnPage,
        deadline: float,
        cancelled: Callable[[], bool] = never,
    ) -> PullResult:
        """Blocks until the pages of all keys came, in order, or the first one is missing, wrong or late: pages are a
        chain, so what lies behind a hole is of no use. Several threads may pull at once.

        deadline: on `time.monotonic`. cancelled: asked every few pages and every 50 ms.
        Raises what `on_page` and `cancelled` raise, and nothing for what the network or the peer does.
        """
        ...

    def hottest(self, address: PageAddress, max_pages: int, deadline: float) -> list[tuple[BlockKey, ...]]:
        """What the peer's prompts begin with, the most used page first; nothing where it does not say."""
        ...

    def offer(
        self, address: PageAddress, source: PageAddress, pages: Sequence[Sequence[BlockKey]], deadline: float
    ) -> int:
        """Has the peer take pages from `source`; returns when it is done. How many it took."""
        ...

    def close(self) -> None:
        """Ends pulls that run and lets go of all connections."""
        ...
