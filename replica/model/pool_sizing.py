"""How many pages the engine may have."""

from collections.abc import Sequence

import torch

from replica.attention.pages import LayerShape, bytes_per_page
from replica.config import EngineConfig
from replica.errors import PoolTooSmall
from replica.node_share import available_memory


def bytes_per_token(shapes: Sequence[LayerShape], dtype: torch.dtype) -> int:
    return sum(shape.bytes_per_token(dtype) for shape in shapes)


def num_pages(
    config: EngineConfig,
    shapes: Sequence[LayerShape],
    dtype: torch.dtype,
    device: torch.device,
    page_size: int,
    max_model_len: int,
) -> int:
    """Given blocks win over given bytes, and bytes over what memory allows (A37).

    Raises PoolTooSmall with the numbers where bytes or memory do not hold one request of max_model_len tokens. A given
    number of blocks is taken as it is, as far as it fills whole pages: longer requests are then refused one by one
    (A22). It must fill one page.
    """
    page_bytes = bytes_per_page(shapes, page_size, dtype)
    needed = -(-max_model_len // page_size)
    if config.num_blocks is not None:
        return _pages_of(config.num_blocks, config.block_size, page_size)
    if config.kv_memory_bytes is not None:
        pages, origin = config.kv_memory_bytes // page_bytes, f"kv_memory_bytes={config.kv_memory_bytes}"
    else:
        free = _free_bytes(device) - (config.host_kv_memory if device.type == "cpu" else 0)
        most = int(free * config.memory_fraction) // page_bytes
        # Who shares the machine with a desktop is left most of it; one request may need more than that.
        wanted = most if device.type == "cuda" else min(most, max(needed, most // 2))
        # More than every running request at full length can never be used at once.
        pages = min(wanted, needed * config.max_num_seqs)
        origin = f"{config.memory_fraction:.0%} of {free} free bytes"
    if pages < needed:
        raise PoolTooSmall(
            f"one request of max_model_len={max_model_len} tokens needs {needed} blocks of {page_size} tokens "
            f"({needed * page_bytes} bytes), but {origin} gives {pages} ({pages * page_bytes} bytes): "
            "lower max_model_len or give more memory"
        )
    return pages


def _pages_of(num_blocks: int, block_size: int, page_size: int) -> int:
    pages = num_blocks * block_size // page_size
    if not pages:
        raise PoolTooSmall(
            f"num_blocks must be at least {page_size // block_size}, got {num_blocks}: a page has {page_size} tokens, "
            f"a block {block_size}"
        )
    return pages


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory()
