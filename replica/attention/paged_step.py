"""The cache object that a transformers model sees during one step."""

import torch

from replica.attention.backend import AttentionBackend, BatchLayout, LayerOptions
from replica.kv_pages import KVPages


class PagedStep:
    """Writes each layer's new K/V into the pages and lets a backend attend over them.

    Has the part of transformers' `Cache` interface that models call. Lives for one forward pass.
    """

    is_compileable = False
    is_sliding: tuple[bool, ...] = ()

    def __init__(self, pages: KVPages, layout: BatchLayout, backend: AttentionBackend):
        self._pages = pages
        self._layout = layout
        self._backend = backend

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """key, value: [1, num_kv_heads, num_tokens, head_dim]. Returns them unchanged; attention reads the pages."""
        self._pages.write(layer_idx, key[0].transpose(0, 1), value[0].transpose(0, 1), self._layout.slots)
        return key, value

    def attend(self, layer_idx: int, query: torch.Tensor, options: LayerOptions) -> torch.Tensor:
        keys, values = self._pages.layer(layer_idx)
        return self._backend.attend(query, keys, values, self._layout, options)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are always given, and nothing is ever concatenated

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1
