"""Builds the colder tiers that an engine is told to have."""

import hashlib
from pathlib import Path

import torch

from cache.block_hasher import BlockHasher
from cache.tiers.colder_tiers import ColderTiers
from cache.tiers.disk import DiskTier
from cache.tiers.disk_state import smallest_disk_bytes
from cache.tiers.host import HostTier
from replica.attention.pages import KVPages
from replica.config import EngineConfig
from replica.loading.page_memory import PageMemory
from replica.model.forward_pass import ForwardPass


def page_identity(hasher: BlockHasher, pages: KVPages, numerics: str = "") -> bytes:
    """What two pools must have in common for equal keys to mean equal bytes: the cluster's secret, the weights, the
    dtype and how a page is laid out. 32 bytes.

    numerics: what else the last bits depend on, where they matter (`deterministic_numerics`).
    """
    layout = (*pages.shapes, pages.page_size, pages.page_bytes, str(pages.layer(0)[0].dtype))
    if numerics:
        layout = (*layout, numerics)
    return hashlib.blake2b(repr(layout).encode(), key=hasher.canary, digest_size=32).digest()


def deterministic_numerics(forward_pass: ForwardPass) -> str:
    """Pages that were computed by other kernels, or with no care for the last bits, are no pages of an engine that
    promises the same bits: a folder outlives the cluster that filled it, and nodes may have different processors."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"deterministic {forward_pass.path} {forward_pass.attention} torch {torch.__version__} {capability}"


def check_tier_sizes(config: EngineConfig, page_bytes: int) -> None:
    """Raises ValueError for a tier that holds no page."""
    if config.host_kv_memory and config.host_kv_memory < page_bytes:
        raise ValueError(f"host_kv_memory must be 0 or hold a page of {page_bytes} bytes, got {config.host_kv_memory}")
    least_on_disk = smallest_disk_bytes(page_bytes)
    if config.disk_kv_folder is not None and config.disk_kv_size < least_on_disk:
        raise ValueError(f"disk_kv_size must be at least {least_on_disk} bytes for one page, got {config.disk_kv_size}")


def build_tiers(config: EngineConfig, identity: bytes, pages: KVPages) -> ColderTiers | None:
    """None where no tier is asked for. Raises ValueError for sizes that hold no page."""
    check_tier_sizes(config, pages.page_bytes)
    memory = PageMemory(pages)
    host = HostTier(config.host_kv_memory, pages.page_bytes) if config.host_kv_memory else None
    if host is None and config.disk_kv_folder is None:
        return None
    tiers = ColderTiers(host, None, pages.page_bytes, memory.bytes_of)
    if config.disk_kv_folder is not None:
        tiers.disk = DiskTier(
            Path(config.disk_kv_folder),
            config.disk_kv_size,
            pages.page_bytes,
            identity,
            write_bytes_per_second=config.disk_kv_write_rate,
            on_change=tiers.disk_changed,
        )
    return tiers
