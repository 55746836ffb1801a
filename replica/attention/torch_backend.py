"""Paged attention in plain torch: gathers a request's pages and attends with an explicit mask. Runs everywhere."""

from typing import ClassVar

import torch
from torch.nn.functional import scaled_dot_product_attention

from replica.attention.backend import AttentionBackend, BatchLayout, LayerOptions

_FUSED_FROM = 32
"""Keys. With fewer than a register holds, torch's fused kernel for CPUs answers zeros where a score is no number."""


class TorchAttention(AttentionBackend):
    """The reference that every other backend is compared with."""

    name: ClassVar[str] = "torch"

    @classmethod
    def unavailable_because(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    @classmethod
    def page_size_multiple(cls) -> int:
        return 1

    def key_borders(self) -> tuple[int, ...]:
        return (_FUSED_FROM,)

    def attend(
        self,
        query: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        layout: BatchLayout,
        options: LayerOptions,
    ) -> torch.Tensor:
        output = query.new_empty(query.shape[0], query.shape[1], value_pages.shape[-1])
        for i in range(layout.num_requests):
            rows = slice(layout.query_starts[i], layout.query_starts[i + 1])
            end = layout.context_lens[i]
            num_queries = rows.stop - rows.start
            start = _first_visible(end - num_queries, options.sliding_window, key_pages.shape[1])
            keys = _gather(key_pages, layout.page_tables[i], start, end)
            values = _gather(value_pages, layout.page_tables[i], start, end)
            output[rows] = _attend_one(query[rows], keys, values, options)
        return output


def _first_visible(first_query: int, sliding_window: int | None, page_size: int) -> int:
    """First token that any query of the request sees, rounded down to a page."""
    if sliding_window is None:
        return 0
    return max(0, first_query - sliding_window + 1) // page_size * page_size


def _gather(pages: torch.Tensor, table: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Tokens start (a page's first) to end of one request: [end - start, num_kv_heads, head_dim]."""
    page_size = pages.shape[1]
    wanted = table[start // page_size : -(-end // page_size)]
    return pages[wanted].flatten(0, 1)[: end - start]


def _attend_one(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, options: LayerOptions) -> torch.Tensor:
    """query: [num_queries, num_heads, head_dim], aligned to the end of keys: [num_keys, num_kv_heads, head_dim].

    The heads that share a K/V head are laid out as further query rows of it, so K/V are never repeated in memory.
    """
    num_queries, num_heads, head_dim = query.shape
    num_keys, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads
    q = query.view(num_queries, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    q = q.reshape(1, num_kv_heads, group * num_queries, head_dim)
    k, v = keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0)
    mask = _mask(num_queries, num_keys, options.sliding_window, query.device)
    if mask is not None and group > 1:
        mask = mask.repeat(group, 1)
    if options.softcap is None and num_keys >= _FUSED_FROM:
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=options.scaling)
    else:
        out = _step_by_step(q, k, v, mask, options)
    return out.view(num_kv_heads, group, num_queries, -1).permute(2, 0, 1, 3).reshape(num_queries, num_heads, -1)


def _mask(num_queries: int, num_keys: int, sliding_window: int | None, device: torch.device) -> torch.Tensor | None:
    """[num_queries, num_keys], True where a query sees a key: aligned bottom-right, because the queries are the newest
    tokens (A8, A9). None where everything is seen."""
    if num_queries == 1 and (sliding_window is None or num_keys <= sliding_window):
        return None
    position = torch.arange(num_keys - num_queries, num_keys, device=device).unsqueeze(1)
    key = torch.arange(num_keys, device=device)
    mask = key <= position
    if sliding_window is not None:
        mask &= key > position - sliding_window
    return mask


def _step_by_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, options: LayerOptions
) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) * options.scaling
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype), v)
