"""Paged attention by the flash-attn package on CUDA: version 3 where it is installed and runs, else version 2."""

from importlib.util import find_spec
from typing import ClassVar

import torch

from replica.attention.backend import AttentionBackend, BatchLayout, LayerOptions
from replica.attention.device_layout import LayoutCache


class FlashAttention(AttentionBackend):
    """flash-attn 2: `flash_attn_varlen_func` with a block table, which runs in one pass over the keys (A46)."""

    name: ClassVar[str] = "flash_attn"
    package: ClassVar[str] = "flash_attn"
    min_capability: ClassVar[tuple[int, int]] = (8, 0)

    def __init__(self) -> None:
        self._layouts = LayoutCache()

    @classmethod
    def unavailable_because(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        if device.type != "cuda":
            return f"it runs on CUDA devices, not on {device.type}"
        if dtype not in (torch.float16, torch.bfloat16):
            return f"it computes in float16 or bfloat16, not in {str(dtype).removeprefix('torch.')}"
        if torch.cuda.get_device_capability(device) < cls.min_capability:
            return "it needs a GPU of compute capability {}.{} or later".format(*cls.min_capability)
        if find_spec(cls.package) is None:
            return f"the package {cls.package} is not installed"
        return None

    @classmethod
    def page_size_multiple(cls) -> int:
        return 256

    def attend(
        self,
        query: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        layout: BatchLayout,
        options: LayerOptions,
    ) -> torch.Tensor:
        from flash_attn import flash_attn_varlen_func

        batch = self._layouts.get(layout)
        output: torch.Tensor = flash_attn_varlen_func(
            query.contiguous(),
            key_pages,
            value_pages,
            batch.query_starts,
            batch.key_starts,
            batch.max_queries,
            batch.max_context,
            softmax_scale=options.scaling,
            causal=True,
            window_size=_window(options),
            softcap=options.softcap or 0.0,
            block_table=batch.page_tables,
        )
        return output


class FlashAttention3(FlashAttention):
    """flash-attn 3 (Hopper): `flash_attn_with_kvcache` with a page table of any page size, in one pass (A46)."""

    name: ClassVar[str] = "flash_attn_3"
    package: ClassVar[str] = "flash_attn_interface"
    min_capability: ClassVar[tuple[int, int]] = (9, 0)

    @classmethod
    def page_size_multiple(cls) -> int:
        return 1

    def attend(
        self,
        query: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        layout: BatchLayout,
        options: LayerOptions,
    ) -> torch.Tensor:
        from flash_attn_interface import flash_attn_with_kvcache

        batch = self._layouts.get(layout)
        output: torch.Tensor = flash_attn_with_kvcache(
            query.contiguous(),
            key_pages,
            value_pages,
            cache_seqlens=batch.context_lens,
            page_table=batch.page_tables,
            cu_seqlens_q=batch.query_starts,
            max_seqlen_q=batch.max_queries,
            softmax_scale=options.scaling,
            causal=True,
            window_size=_window(options),
            softcap=options.softcap or 0.0,
            num_splits=1,
        )
        return output


def _window(options: LayerOptions) -> tuple[int, int]:
    """Keys to the left and right of a query that it sees besides itself; -1 is all."""
    return (-1, -1) if options.sliding_window is None else (options.sliding_window - 1, 0)
