"""Paged attention by the flash-attn package on CUDA: version 3 where it is installed and runs, else version 2."""

from typing import ClassVar

import torch

from replica.attention.backend import BatchLayout, LayerOptions
from replica.attention.cuda_backend import CudaAttention, causal_window


class FlashAttention(CudaAttention):
    """flash-attn 2: `flash_attn_varlen_func` with a block table."""

    name: ClassVar[str] = "flash_attn"
    package: ClassVar[str | None] = "flash_attn"

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
            window_size=causal_window(options),
            softcap=options.softcap or 0.0,
            block_table=batch.page_tables,
        )
        return output


class FlashAttention3(CudaAttention):
    """flash-attn 3 (Hopper): `flash_attn_with_kvcache` with a page table of any page size."""

    name: ClassVar[str] = "flash_attn_3"
    package: ClassVar[str | None] = "flash_attn_interface"
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
            window_size=causal_window(options),
            softcap=options.softcap or 0.0,
            num_splits=1,
        )
        return output
