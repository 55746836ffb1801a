"""The cache object that a transformers model sees during one step."""

from dataclasses import replace
from functools import cached_property

import torch

from replica.attention.backend import AttentionBackend, BatchLayout, LayerOptions
from replica.attention.pages import KVPages, Places


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

    @property
    def pages(self) -> KVPages:
        return self._pages

    @property
    def layout(self) -> BatchLayout:
        return self._layout

    def with_layout(self, layout: BatchLayout) -> "PagedStep":
        """Another forward pass over the same pages."""
        return PagedStep(self._pages, layout, self._backend)

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """key, value: [1, num_kv_heads, num_tokens, head_dim]. Returns them unchanged, because attention reads the
        pages; but to a layer that expands latents, those of all its requests' tokens, page by page."""
        self._pages.write(layer_idx, key[0].transpose(0, 1), value[0].transpose(0, 1), self._places)
        if not self._pages.shapes[layer_idx].expanded:
            return key, value
        keys, values = self._pages.layer(layer_idx)
        page_ids = torch.cat(self._own_pages)
        return _side_by_side(keys[page_ids]), _side_by_side(values[page_ids])

    def attend(
        self, layer_idx: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: LayerOptions
    ) -> torch.Tensor:
        """query: [num_tokens, num_heads, head_dim]. key, value: [1, num_kv_heads, ..., head_dim], of use only where the
        layer expanded what `update` returned; the backend then sees that as pages of this layer alone."""
        if not self._pages.shapes[layer_idx].expanded:
            keys, values = self._pages.layer(layer_idx)
            return self._backend.attend(query, keys, values, self._layout, options)
        keys, values = self._as_pages(key), self._as_pages(value)
        return self._backend.attend(query, keys, values, self._expanded_layout, options)

    @cached_property
    def _places(self) -> Places:
        return self._pages.places(self._layout.slots)

    @cached_property
    def _own_pages(self) -> list[torch.Tensor]:
        """Each request's pages as far as they hold tokens."""
        page_size, layout = self._pages.page_size, self._layout
        lengths = [-(-tokens // page_size) for tokens in layout.context_lens]
        return [table[:length] for table, length in zip(layout.page_tables, lengths, strict=True)]

    def _as_pages(self, states: torch.Tensor) -> torch.Tensor:
        """[1, num_kv_heads, num_pages * page_size, head_dim] -> [num_pages, page_size, num_kv_heads, head_dim]."""
        return states[0].transpose(0, 1).unflatten(0, (-1, self._pages.page_size)).contiguous()

    @cached_property
    def _expanded_layout(self) -> BatchLayout:
        lengths = [len(table) for table in self._own_pages]
        order = torch.arange(sum(lengths), device=self._layout.slots.device)
        return replace(self._layout, page_tables=tuple(order.split(lengths)))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are always given, and nothing is ever concatenated

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1


def _side_by_side(pages: torch.Tensor) -> torch.Tensor:
    """[num_pages, page_size, num_kv_heads, head_dim] -> [1, num_kv_heads, num_pages * page_size, head_dim]."""
    return pages.flatten(0, 1).transpose(0, 1).unsqueeze(0)
