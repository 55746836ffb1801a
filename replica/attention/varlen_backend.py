"""Paged attention by torch's own varlen kernel on CUDA."""

from typing import ClassVar

import torch

from replica.attention.backend import BatchLayout, LayerOptions
from replica.attention.cuda_backend import CudaAttention, causal_window


class VarlenAttention(CudaAttention):
    """`torch.nn.attention.varlen.varlen_attn` with a block table (torch 2.13, CUDA only).

    Always one pass over the keys: with split-KV its paged path leaves rows of later requests unwritten (A46,
    torch#194167), and one pass makes a request's result independent of its neighbours.
    """

    name: ClassVar[str] = "varlen"

    def attend(
        self,
        query: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        layout: BatchLayout,
        options: LayerOptions,
    ) -> torch.Tensor:
        from torch.nn.attention.varlen import varlen_attn

        if options.softcap is not None:
            raise NotImplementedError("torch's varlen kernel has no softcap; use flash_attn or torch")
        batch = self._layouts.get(layout)
        output: torch.Tensor = varlen_attn(
            query.contiguous(),
            key_pages,
            value_pages,
            batch.query_starts,
            batch.key_starts,
            batch.max_queries,
            batch.max_context,
            scale=options.scaling,
            window_size=causal_window(options),
            enable_gqa=query.shape[1] != key_pages.shape[2],
            seqused_k=batch.context_lens,
            block_table=batch.page_tables,
            num_splits=1,
        )
        return output
