"""Proves on a few tokens that a forward pass gives the same bits however the work is cut."""

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Any

import torch

from replica.attention.backend import AttentionBackend
from replica.attention.paged_step import PagedStep
from replica.attention.pages import KVPages, LayerShape
from replica.errors import UnsupportedModel
from replica.kernels.packed_linear import PackedLinear
from replica.model.paged_probe import layout_of
from replica.model.probe import Forward, cache_argument, probe_ids
from replica.model.probe_spans import MAX_PROBE_TOKENS, Span, across_keys, across_rows, witnesses

_FEW = (0, 6, 7, 40)
"""A third request, that begins late and ends early."""


def verify_invariant(
    forward: Forward, shapes: list[LayerShape], backend: AttentionBackend, page_size: int, vocab_size: int, window: int
) -> None:
    """window: tokens of the model's longest sequence. fp32 on a CPU.

    Raises UnsupportedModel where a request's logits depend on its neighbours or on how its prompt was cut.
    """
    if isinstance(forward, torch.nn.Module):
        _refuse_library_products(forward)
    limit = min(MAX_PROBE_TOKENS, window)
    requests = [
        across_keys({*backend.key_borders(), page_size}, limit) or [(0, limit)],
        across_rows(backend.row_borders(), limit) or [(0, min(limit, _FEW[1]))],
        [(start, end) for start, end in pairwise(min(cut, limit) for cut in _FEW) if start < end],
    ]
    probe = _Probe(forward, shapes, backend, page_size, vocab_size, requests)
    mixed: list[list[torch.Tensor]] = [[] for _ in requests]
    for spans_of_step in zip_longest(*requests):
        step = {i: span for i, span in enumerate(spans_of_step) if span is not None}
        for i, logits in zip(step, probe.compute(step), strict=True):
            mixed[i].append(logits)
    for i, spans in enumerate(requests):
        (alone,) = probe.compute({i: (0, spans[-1][1])})
        if not torch.equal(alone, torch.cat(mixed[i])):
            raise UnsupportedModel("its logits depend in their last bits on what is computed beside them")


class _Probe:
    """Computes spans of made-up prompts through pages of its own."""

    def __init__(
        self,
        forward: Forward,
        shapes: list[LayerShape],
        backend: AttentionBackend,
        page_size: int,
        vocab_size: int,
        requests: Sequence[Sequence[Span]],
    ):
        lengths = [spans[-1][1] for spans in requests]
        self._kept = [witnesses(spans) for spans in requests]
        num_pages = [-(-length // page_size) for length in lengths]
        self._forward, self._backend, self._page_size = forward, backend, page_size
        self._pages = KVPages(shapes, sum(num_pages), page_size, torch.float32, torch.device("cpu"))
        self._tables = torch.arange(sum(num_pages)).flip(0).split(num_pages)
        cpu = torch.device("cpu")
        self._ids = [probe_ids(length, vocab_size, cpu, 7919 + 2 * i) for i, length in enumerate(lengths)]

    @torch.inference_mode()
    def compute(self, spans: dict[int, Span]) -> tuple[torch.Tensor, ...]:
        """spans: request -> its tokens from start to end, all in one flat batch.

        Returns the logits of each one's witnesses among them.
        """
        layout, positions = layout_of([self._tables[i] for i in spans], list(spans.values()), self._page_size)
        step = PagedStep(self._pages, layout, self._backend)
        arguments: dict[str, Any] = {cache_argument(self._forward): step, "paged_step": step}
        kept = [
            [first + row - start for row in self._kept[i] if start <= row < end]
            for first, (i, (start, end)) in zip(layout.query_starts, spans.items(), strict=False)
        ]
        ids = torch.cat([self._ids[i][start:end] for i, (start, end) in spans.items()])
        output = self._forward(
            input_ids=ids.unsqueeze(0), position_ids=positions.unsqueeze(0),
            logits_to_keep=torch.tensor([row for rows in kept for row in rows], dtype=torch.int64), **arguments,
        )  # fmt: skip
        return output.logits[0].split([len(rows) for rows in kept])


def _refuse_library_products(model: torch.nn.Module) -> None:
    """Libraries choose the order of a product's sums by its size, so a few equal bits would prove nothing.

    Raises UnsupportedModel where the model multiplies by anything but packed weights.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding | PackedLinear):
            continue
        if any(parameter.dim() > 1 for parameter in module.parameters(recurse=False)):
            raise UnsupportedModel(f"the weights of {name} are not packed")
