"""Proves on a few tokens that a forward pass gives the same bits however the work is cut."""

from typing import Any

import torch

from replica.attention.backend import AttentionBackend
from replica.attention.paged_step import PagedStep
from replica.errors import UnsupportedModel
from replica.kernels.packed_linear import PackedLinear
from replica.kv_pages import KVPages, LayerShape
from replica.model_probe import Forward, cache_argument, layout_of

_CUTS = ((0, 5, 5, 33, 34, 61), (0, 0, 6, 7, 40, 40), (0, 8, 9, 9, 9, 9))
"""Per request up to where it is computed after each step: chunks, decodes and idle ones side by side."""


def verify_invariant(
    forward: Forward, shapes: list[LayerShape], backend: AttentionBackend, page_size: int, vocab_size: int, window: int
) -> None:
    """window: tokens of the model's longest sequence. fp32 on a CPU.

    Raises UnsupportedModel where a request's logits depend on its neighbours or on how its prompt was cut.
    """
    if isinstance(forward, torch.nn.Module):
        _refuse_library_products(forward)
    cuts = [[min(cut, window) for cut in request] for request in _CUTS]
    probe = _Probe(forward, shapes, backend, page_size, vocab_size, longest=cuts[0][-1])
    mixed: list[list[torch.Tensor]] = [[] for _ in cuts]
    for ends in range(1, len(cuts[0])):
        spans = {i: (request[ends - 1], request[ends]) for i, request in enumerate(cuts)}
        spans = {i: (start, end) for i, (start, end) in spans.items() if start < end}
        for i, logits in zip(spans, probe.compute(spans) if spans else (), strict=True):
            mixed[i].append(logits)
    for i, request in enumerate(cuts):
        (alone,) = probe.compute({i: (0, request[-1])})
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
        longest: int,
    ):
        num_pages = -(-longest // page_size)
        self._forward, self._backend, self._page_size = forward, backend, page_size
        self._pages = KVPages(shapes, len(_CUTS) * num_pages, page_size, torch.float32, torch.device("cpu"))
        self._tables = torch.arange(len(_CUTS) * num_pages).flip(0).view(len(_CUTS), num_pages)
        self._ids = torch.stack([torch.arange(longest) * (7919 + 2 * i) % vocab_size for i in range(len(_CUTS))])

    @torch.inference_mode()
    def compute(self, spans: dict[int, tuple[int, int]]) -> tuple[torch.Tensor, ...]:
        """spans: request -> its tokens from start to end, all in one flat batch. Returns each one's logits."""
        layout, positions = layout_of(self._tables[list(spans)], list(spans.values()), self._page_size)
        step = PagedStep(self._pages, layout, self._backend)
        arguments: dict[str, Any] = {cache_argument(self._forward): step, "paged_step": step}
        lengths = [end - start for start, end in spans.values()]
        rows = torch.repeat_interleave(torch.tensor(list(spans)), torch.tensor(lengths))
        ids = self._ids[rows, positions].unsqueeze(0)
        output = self._forward(input_ids=ids, position_ids=positions.unsqueeze(0), **arguments)
        return output.logits[0].split(lengths)


def _refuse_library_products(model: torch.nn.Module) -> None:
    """Libraries choose the order of a product's sums by its size, so a few equal bits would prove nothing.

    Raises UnsupportedModel where the model multiplies by anything but packed weights.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding | PackedLinear):
            continue
        if any(parameter.dim() > 1 for parameter in module.parameters(recurse=False)):
            raise UnsupportedModel(f"the weights of {name} are not packed")
