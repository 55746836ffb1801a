"""Builds the colder tiers that an engine is told to have."""

import hashlib
from pathlib import Path

from cache.block_hasher import BlockHasher
from cache.tiers.colder_tiers import ColderTiers
from cache.tiers.disk import DiskTier
from cache.tiers.host import HostTier
from replica.attention.pages import KVPages
from replica.config import EngineConfig
from replica.loading.page_memory import PageMemory


def page_identity(hasher: BlockHasher, pages: KVPages) -> bytes:
    """What two pools must have in common for equal keys to mean equal bytes: the cluster's secret, the weights, the
    dtype and how a page is laid out. 32 bytes."""
    layout = (*pages.shapes, pages.page_size, pages.page_bytes, str(pages.layer(0)[0].dtype))
    return hashlib.blake2b(repr(layout).encode(), key=hasher.canary, digest_size=32).digest()


def build_tiers(config: EngineConfig, hasher: BlockHasher, pages: KVPages) -> ColderTiers | None:
    """None where no tier is asked for. Raises ValueError for sizes that hold no page."""
    memory = PageMemory(pages)
    host = HostTier(config.host_kv_memory, pages.page_bytes) if config.host_kv_memory else None
    if host is None and config.disk_kv_folder is None:
        return None
    tiers = ColderTiers(host, None, pages.page_bytes, memory.bytes_of)
    if config.disk_kv_folder is not None:
        identity = page_identity(hasher, pages)
        tiers.disk = DiskTier(
            Path(config.disk_kv_folder),
            config.disk_kv_size,
            pages.page_bytes,
            identity,
            write_bytes_per_second=config.disk_kv_write_rate,
            on_change=tiers.disk_changed,
        )
    return tiers
