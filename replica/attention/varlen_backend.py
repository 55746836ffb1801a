"""Paged attention by torch's own varlen kernel on CUDA."""

from typing import ClassVar

import torch

from replica.attention.backend import AttentionBackend, BatchLayout, LayerOptions
from replica.attention.device_layout import LayoutCache


class VarlenAttention(AttentionBackend):
    """`torch.nn.attention.varlen.varlen_attn` with a block table (torch 2.13, CUDA only).

    Always one pass over the keys: with split-KV its paged path leaves rows of later requests unwritten (A46,
    torch#194167), and one pass makes a request's result independent of its neighbours.
    """

    name: ClassVar[str] = "varlen"

    def __init__(self) -> None:
        self._layouts = LayoutCache()

    @classmethod
    def unavailable_because(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        if device.type != "cuda":
            return f"it runs on CUDA devices, not on {device.type}"
        if dtype not in (torch.float16, torch.bfloat16):
            return f"it computes in float16 or bfloat16, not in {str(dtype).removeprefix('torch.')}"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "it needs a GPU of compute capability 8.0 or later"
        return None

    @classmethod
    def page_size_multiple(cls) -> int:
        return 256  # of the FlashAttention 2 kernel underneath

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
            window_size=(-1 if options.sliding_window is None else options.sliding_window - 1, 0),
            enable_gqa=query.shape[1] != key_pages.shape[2],
            seqused_k=batch.context_lens,
            block_table=batch.page_tables,
            num_splits=1,
        )
        return output
