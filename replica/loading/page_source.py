"""The pages that this replica can give to its peers, read beside the engine's steps."""

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from cache.block_hasher import BlockKey
from cache.kv_cache_manager import KVCacheManager
from cache.tiers.host import Blob
from replica.loading.page_memory import PageMemory
from replica.messages import PageAddress

logger = logging.getLogger(__name__)


class EnginePages:
    """See `replica.transfer.transfer.PageSource`. Pages are not pinned, and the engine's thread is not asked: one that
    was handed out to somebody else while it was copied is a miss (`BlockPool.generation`), as one that was never here.
    """

    def __init__(self, manager: KVCacheManager, memory: PageMemory, identity: bytes):
        self.page_bytes = memory.page_bytes
        self.identity = identity
        self.on_offer: Callable[[PageAddress, Sequence[Sequence[BlockKey]]], int] = lambda source, pages: 0
        """What `offered` does."""
        self._manager = manager
        self.memory = memory
        self._held_back_until = float("-inf")

    def hold_back(self, seconds: float) -> None:
        """Gives nothing away for so long, or until `give_again`: before a reset of the whole cluster, in which one that
        has forgotten everything would else be given the same again by one that is still to be asked."""
        self._held_back_until = time.monotonic() + seconds

    def give_again(self) -> None:
        self._held_back_until = float("-inf")

    def hottest(self, max_pages: int, least_uses: int = 1) -> list[tuple[BlockKey, ...]]:
        """Of the pool."""
        found = self._manager.pool.hottest(max_pages, least_uses)
        return [keys for keys in found if len(keys) == self._manager.blocks_per_page]

    def offered(self, source: PageAddress, pages: Sequence[Sequence[BlockKey]]) -> int:
        try:
            return self.on_offer(source, pages)
        except Exception:
            logger.exception("pages that %s offers could not be taken", source.replica_id)
            return 0

    def read_page(self, key: BlockKey, target: memoryview) -> bool:
        """Copies the page whose last block this is; any thread."""
        if time.monotonic() < self._held_back_until:
            return False
        copied = np.frombuffer(target, np.uint8)
        return self._read_pool(key, copied) or self._read_tiers(key, copied)

    def _read_pool(self, key: BlockKey, target: Blob) -> bool:
        pool = self._manager.pool
        page_id = pool.index.find(key)
        if page_id is None:
            return False
        generation = pool.generation(page_id)
        if pool.index.find(key) != page_id:  # else it might have been handed out between the two looks
            return False
        np.copyto(target, self.memory.bytes_of(page_id))
        return pool.generation(page_id) == generation

    def _read_tiers(self, key: BlockKey, target: Blob) -> bool:
        tiers = self._manager.tiers
        return tiers is not None and tiers.read(key, _into(target)) is not None


def _into(target: Blob) -> Callable[[Blob], bool]:
    def take(blob: Blob) -> bool:
        np.copyto(target, blob)
        return True

    return take
