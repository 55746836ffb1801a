"""Proves that a forward pass over pages gives the model's own logits, on both sides of every border of the kernels."""

from collections.abc import Sequence
from itertools import zip_longest

import torch
from transformers import PreTrainedModel

from replica.attention.backend import AttentionBackend, BatchLayout
from replica.attention.paged_step import PagedStep
from replica.attention.pages import KVPages, LayerShape
from replica.errors import UnsupportedModel
from replica.model.probe import Forward, cache_argument, explained, probe_ids, use_paged_attention
from replica.model.probe_spans import MAX_PROBE_TOKENS, Span, across_keys, across_rows, witnesses

_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.15}
"""Largest difference of logits, relative to their spread."""
_LEAST_TOKENS = 24
_MOST_ROWS = 200
"""Of the request that crosses the borders of rows: enough for those of one or two dozen; the others are tests'."""


class PagedProbe:
    """Two requests side by side in steps that end at every border: one's context crosses the borders of keys, pages and
    windows, the other one's chunks those of rows.

    Catches whatever the bridge cannot carry (ALiBi, masks and positions of the model's own, layers that mix neighbours)
    without knowing models by name, and what a kernel gets wrong on one side of a border.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        shapes: Sequence[LayerShape],
        backend: AttentionBackend,
        page_size: int,
        vocab_size: int,
        max_model_len: int,
    ):
        """Runs the model in its own eager attention for the reference. Raises UnsupportedModel."""
        self._shapes, self._backend, self._page_size = list(shapes), backend, page_size
        self._dtype, self._device = model.dtype, model.device
        limit = min(MAX_PROBE_TOKENS, max_model_len)
        windows = {shape.sliding_window for shape in shapes if shape.sliding_window is not None}
        borders = {*backend.key_borders(), page_size, *windows, _LEAST_TOKENS}
        self._spans = [
            across_keys(borders, limit) or [(0, limit)],
            across_rows(backend.row_borders(), min(limit, _MOST_ROWS)) or [(0, min(limit, _LEAST_TOKENS))],
        ]
        self._kept = [witnesses(spans) for spans in self._spans]
        self._ids = [
            probe_ids(spans[-1][1], vocab_size, model.device, step)
            for spans, step in zip(self._spans, (7919, 104729), strict=True)
        ]
        self._reference = self._own_logits(model)

    def verify(self, forward: Forward) -> None:
        """Raises UnsupportedModel where the logits over pages are others than the model's own."""
        differences = [
            (own - paged).abs().max() for own, paged in zip(self._reference, self._compute(forward), strict=True)
        ]
        difference = torch.stack(differences).max().item()  # Python's own max would drop a NaN that is not the first
        bound = _TOLERANCE[self._dtype] * max(1.0, *(own.std().item() for own in self._reference if own.numel() > 1))
        if not difference <= bound:
            raise UnsupportedModel(
                "paged attention gives other logits than the model itself "
                f"(difference {difference:.3g}, bound {bound:.3g})"
            )

    def _own_logits(self, model: PreTrainedModel) -> list[torch.Tensor]:
        """Per request [number of kept rows, vocabulary]."""
        explained(model.set_attn_implementation, "eager")
        try:
            with torch.inference_mode():
                return [
                    explained(
                        model, input_ids=ids.unsqueeze(0), use_cache=False,
                        logits_to_keep=torch.tensor(kept, device=self._device),
                    ).logits[0]
                    for ids, kept in zip(self._ids, self._kept, strict=True)
                ]  # fmt: skip
        finally:
            use_paged_attention(model)

    def _compute(self, forward: Forward) -> list[torch.Tensor]:
        num_pages = [-(-len(ids) // self._page_size) for ids in self._ids]
        pages = KVPages(self._shapes, sum(num_pages), self._page_size, self._dtype, self._device)
        tables = torch.arange(sum(num_pages) - 1, -1, -1, device=self._device).split(num_pages)
        logits: list[list[torch.Tensor]] = [[], []]
        for spans in zip_longest(*self._spans):
            running = [i for i, span in enumerate(spans) if span is not None]
            layout, positions = layout_of([tables[i] for i in running], [spans[i] for i in running], self._page_size)
            step, kept, counts = PagedStep(pages, layout, self._backend), list[int](), list[int]()
            for i, first in zip(running, layout.query_starts, strict=False):
                start, end = spans[i]
                rows = [first + row - start for row in self._kept[i] if start <= row < end]
                kept += rows
                counts.append(len(rows))
            arguments = {cache_argument(forward): step, "paged_step": step, "position_ids": positions.unsqueeze(0)}
            ids = torch.cat([self._ids[i][slice(*spans[i])] for i in running])
            arguments["logits_to_keep"] = torch.tensor(kept, device=self._device)
            with torch.inference_mode():
                output = explained(forward, input_ids=ids.unsqueeze(0), **arguments)
            for i, part in zip(running, output.logits[0].split(counts), strict=True):
                logits[i].append(part)
        return [torch.cat(parts) for parts in logits]


def layout_of(
    tables: Sequence[torch.Tensor], spans: Sequence[Span], page_size: int
) -> tuple[BatchLayout, torch.Tensor]:
    """The flat batch in which request i computes its tokens spans[i], and the positions of its rows."""
    starts, slots, positions = [0], [], []
    for table, (start, end) in zip(tables, spans, strict=True):
        positions.append(torch.arange(start, end, device=table.device))
        slots.append(table[positions[-1] // page_size] * page_size + positions[-1] % page_size)
        starts.append(starts[-1] + end - start)
    context_lens = tuple(end for _, end in spans)
    return BatchLayout(tuple(starts), context_lens, tuple(tables), torch.cat(slots)), torch.cat(positions)
