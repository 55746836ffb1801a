"""A replica's pages and those of the others: given on request, taken at the start, left to others at the end."""

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cache.block_hasher import BlockKey
from replica.engine.async_engine import AsyncEngine
from replica.loading.page_importer import PageImporter
from replica.loading.page_source import EnginePages
from replica.messages import PageAddress
from replica.peers import Peers
from replica.transfer.connections import PageServerBounds
from replica.transfer.page_server import PageServer
from replica.transfer.transfer import Transfer

logger = logging.getLogger(__name__)

JOIN_SECONDS = 10.0
"""A start takes at most so much longer."""
LEAVE_SECONDS = 5.0
"""An end, too."""
ANSWER_SECONDS = 1.0
MAX_PAGES = 16_384
"""Of one replica, the most used first."""


class PageExchange:
    """Warmth outlives replicas: one that starts begins with the hottest pages of the others, and one that ends leaves
    them what nobody else has."""

    def __init__(
        self,
        engine: AsyncEngine,
        source: EnginePages,
        transfer: Transfer,
        peers: Peers,
        secret: bytes,
        replica_id: str,
        host: str,
        bytes_per_second: float | None = None,
    ):
        """Gives pages away from now on, so fast at most. secret, host: see PageServer.

        Raises OSError where nothing can listen there.
        """
        self._engine, self._source, self._transfer, self._peers = engine, source, transfer, peers
        self._importer = PageImporter(engine.wait_for, source.memory, transfer)
        source.on_offer = self._take_offered
        self._server = PageServer(secret, replica_id, source, host, PageServerBounds(bytes_per_second=bytes_per_second))

    @property
    def address(self) -> PageAddress:
        return self._server.address

    @property
    def num_pulls(self) -> int:
        """How many others take pages just now."""
        return self._server.num_pulls

    def join(self) -> int:
        """Before the replica takes traffic. How many pages came."""
        deadline = time.monotonic() + JOIN_SECONDS
        seen: set[BlockKey] = set()
        num_taken = 0
        for address in self._peers.addresses().values():
            hottest = self._transfer.hottest(address, MAX_PAGES, min(deadline, time.monotonic() + ANSWER_SECONDS))
            new = [page for page in hottest if page[-1] not in seen]
            seen.update(page[-1] for page in new)
            num_taken += self._importer.take(address, new, deadline)
        if num_taken:
            logger.info("began with %d pages of other replicas", num_taken)
        return num_taken

    def leave(self) -> int:
        """Before the replica ends: offers pages that no other one holds, those of one prompt all to the same. How many
        were taken. Whatever goes wrong, the replica ends."""
        self._importer.close()
        try:
            return self._offer_all(time.monotonic() + LEAVE_SECONDS)
        except Exception:
            logger.exception("this replica's pages could not be left to others")
            return 0

    def close(self) -> None:
        self._importer.close()
        self._server.close()

    def _offer_all(self, deadline: float) -> int:
        addresses = self._peers.addresses()
        if not addresses:
            return 0
        held = self._peers.held(addresses)
        pages = [page for page in self._source.hottest(MAX_PAGES, least_uses=0) if page[-1] not in held]
        if not pages:
            return 0
        takers, shares = list(addresses.values()), self._shares(pages, len(addresses))
        with ThreadPoolExecutor(len(shares)) as threads:
            taken = threads.map(
                lambda number: self._transfer.offer(takers[number], self.address, shares[number], deadline), shares
            )
            num_taken = sum(taken)
        logger.info("left %d of %d pages to other replicas", num_taken, len(pages))
        return num_taken

    def _shares(self, pages: Sequence[Sequence[BlockKey]], num_shares: int) -> dict[int, list[Sequence[BlockKey]]]:
        known: dict[BlockKey, BlockKey] = {}
        roots = self._engine.wait_for(lambda engine: [engine.manager.root_of(page[-1], known) for page in pages])
        shares: dict[int, list[Sequence[BlockKey]]] = defaultdict(list)
        for page, root in zip(pages, roots, strict=True):
            shares[int.from_bytes(root[:8], "big") % num_shares].append(page)
        return shares

    def _take_offered(self, source: PageAddress, pages: Sequence[Sequence[BlockKey]]) -> int:
        return self._importer.take(source, pages, time.monotonic() + LEAVE_SECONDS)
