"""Takes pages from other replicas over sockets."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from cache.block_hasher import BlockKey
from replica.channel.frames import BadFrame
from replica.channel.handshake import BadHandshake
from replica.messages import PageAddress
from replica.transfer.kept_connections import KeptConnections
from replica.transfer.page_protocol import MAX_HOT_BLOCKS, MAX_PAGES_PER_ASK
from replica.transfer.pull_connection import PullConnection, PullStopped
from replica.transfer.timed_socket import Cancelled
from replica.transfer.transfer import OnPage, PullEnd, PullResult, never

logger = logging.getLogger(__name__)
T = TypeVar("T")
_STAYS_USABLE = {PullEnd.MISSING, PullEnd.OTHER_IDENTITY}


class _Taken:
    """Hands pages on, and counts what was taken."""

    def __init__(self, on_page: OnPage):
        self.num_pages = 0
        self._on_page = on_page

    def take(self, blob: memoryview) -> None:
        if not self._on_page(self.num_pages, blob):
            raise PullStopped(PullEnd.DECLINED)
        self.num_pages += 1


class PagePuller:
    """A Transfer: shared memory where the peer is on this node, TCP where it is not."""

    def __init__(self, secret: bytes, identity: bytes, page_bytes: int, max_kept: int = 8):
        """secret: the cluster's. identity, page_bytes: as of this replica's own PageSource. max_kept: idle connections
        to all peers together; each holds one page of memory, or maps what its peer holds."""
        if page_bytes <= 0:
            raise ValueError(f"page_bytes must be above 0, got {page_bytes}")
        self._secret = secret
        self._identity = identity
        self._page_bytes = page_bytes
        self._kept = KeptConnections(max_kept)
        self._closed = threading.Event()

    def pull(
        self,
        address: PageAddress,
        keys: Sequence[BlockKey],
        on_page: OnPage,
        deadline: float,
        cancelled: Callable[[], bool] = never,
    ) -> PullResult:
        """See Transfer."""
        started = time.monotonic()
        taken = _Taken(on_page)
        end, detail = PullEnd.COMPLETE, ""
        try:
            for first in range(0, len(keys), MAX_PAGES_PER_ASK):
                part = keys[first : first + MAX_PAGES_PER_ASK]
                self._pull_part(address, part, taken, deadline, lambda: self._closed.is_set() or cancelled())
        except PullStopped as stopped:
            end, detail = stopped.end, stopped.detail
        except Cancelled:
            end = PullEnd.CANCELLED
        except BadHandshake as error:
            end, detail = PullEnd.UNPROVEN, str(error)
        except BadFrame as error:
            end, detail = PullEnd.MALFORMED, str(error)
        except TimeoutError as error:
            end, detail = PullEnd.LATE, str(error)
        except OSError as error:
            end, detail = PullEnd.LOST, str(error)
        return PullResult(taken.num_pages, taken.num_pages * self._page_bytes, time.monotonic() - started, end, detail)

    def hottest(self, address: PageAddress, max_pages: int, deadline: float) -> list[tuple[BlockKey, ...]]:
        """See Transfer."""
        max_pages = min(max_pages, MAX_HOT_BLOCKS)
        return self._say(address, deadline, lambda connection: connection.ask_hottest(self._identity, max_pages), [])

    def offer(
        self, address: PageAddress, source: PageAddress, pages: Sequence[Sequence[BlockKey]], deadline: float
    ) -> int:
        """See Transfer. Of more than MAX_HOT_BLOCKS blocks the first ones are offered."""
        left, offered = MAX_HOT_BLOCKS, []
        for page in pages:
            left -= len(page)
            if left >= 0:
                offered.append(page)
        return self._say(address, deadline, lambda connection: connection.offer(self._identity, source, offered), 0)

    def _say(self, address: PageAddress, deadline: float, say: Callable[[PullConnection], T], default: T) -> T:
        """Over a connection of its own; what goes wrong is logged."""
        try:
            connection = PullConnection.open(address, self._secret, self._page_bytes, deadline, self._closed.is_set)
            try:
                return say(connection)
            finally:
                connection.close()
        except (PullStopped, Cancelled, BadHandshake, BadFrame, OSError) as error:
            logger.info("%s did not answer about its pages: %r", address.replica_id, error)
            return default

    def close(self) -> None:
        self._closed.set()
        self._kept.close()

    def _pull_part(
        self,
        address: PageAddress,
        keys: Sequence[BlockKey],
        taken: _Taken,
        deadline: float,
        cancelled: Callable[[], bool],
    ) -> None:
        connection = self._ask(address, keys, deadline, cancelled)
        is_usable = False
        try:
            for left, key in zip(reversed(range(len(keys))), keys, strict=True):
                taken.take(connection.next_page(key))
                try:
                    connection.give_back()
                except (OSError, Cancelled):
                    if left:
                        raise
                    return  # everything came
            is_usable = True
        except PullStopped as stopped:
            is_usable = stopped.end in _STAYS_USABLE
            raise
        finally:
            if is_usable:
                self._kept.keep(connection)
            else:
                connection.close()

    def _ask(
        self, address: PageAddress, keys: Sequence[BlockKey], deadline: float, cancelled: Callable[[], bool]
    ) -> PullConnection:
        kept = self._kept.take(address)
        if kept is not None:
            kept.allow(deadline, cancelled)
            try:
                kept.ask(self._identity, keys)
                return kept
            except BaseException as error:
                kept.close()
                if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                    raise  # else it died while it was idle, which says nothing of the peer
        connection = PullConnection.open(address, self._secret, self._page_bytes, deadline, cancelled)
        try:
            connection.ask(self._identity, keys)
        except BaseException:
            connection.close()
            raise
        return connection
