"""Finds the fastest way to run a model's forward pass on this machine that gives the model's own logits."""

from collections.abc import Callable, Iterator

import torch
from transformers import PreTrainedModel

from replica.attention.backend import AttentionBackend
from replica.attention.paged_step import PagedStep
from replica.attention.pages import KVPages, LayerShape
from replica.errors import UnsupportedModel
from replica.kernels.decoder_structure import NotFusable, read_structure
from replica.kernels.fused_decoder import FusedDecoder
from replica.kernels.native_backend import NativeAttention
from replica.kernels.packed_linear import with_packed_linears
from replica.model.forward_pass import NAMES, ForwardPass
from replica.model.invariance_probe import verify_invariant
from replica.model.paged_probe import PagedProbe, layout_of
from replica.model.probe import Forward, cache_argument, layer_options, probe_ids
from replica.model.probe_spans import MAX_PROBE_TOKENS, across_keys, witnesses
from replica.model.token_by_token import TokenByToken

_FAR_TOLERANCE = 1e-3
"""Largest difference of logits at the window's end, relative to their spread."""


def fastest_forward(
    model: PreTrainedModel,
    shapes: list[LayerShape],
    backend: AttentionBackend,
    page_size: int,
    vocab_size: int,
    max_model_len: int,
    compress: bool = True,
    deterministic: bool = False,
) -> tuple[Forward, ForwardPass]:
    """The fused decoder, else the model on packed weights, else the model itself; each must pass `PagedProbe`. Says
    which, and why not a faster one.

    deterministic: each must also pass `verify_invariant`, and the model itself computes one token at a time.
    Raises UnsupportedModel where not even the model itself passes.
    """
    probe = PagedProbe(model, shapes, backend, page_size, vocab_size, max_model_len)
    passed_over: list[str] = []
    for path, build in _candidates(model, shapes, backend, vocab_size, compress):
        try:
            candidate = build()
            probe.verify(candidate)
            _verify_far(model, candidate, shapes, backend, page_size, vocab_size, max_model_len)
            if deterministic:
                verify_invariant(candidate, shapes, backend, page_size, vocab_size, max_model_len)
        except (NotFusable, UnsupportedModel) as error:
            passed_over.append(f"{NAMES[path]}: {error}")
        else:
            return candidate, ForwardPass(path, backend.name, model.device.type, tuple(passed_over))
    forward = TokenByToken(model) if deterministic else model
    probe.verify(forward)
    path = "token_by_token" if deterministic else "model"
    return forward, ForwardPass(path, backend.name, model.device.type, tuple(passed_over))


def _candidates(
    model: PreTrainedModel, shapes: list[LayerShape], backend: AttentionBackend, vocab_size: int, compress: bool
) -> Iterator[tuple[str, Callable[[], Forward]]]:
    """Only with native attention: whoever asks for another backend wants that backend's computation."""
    if isinstance(backend, NativeAttention):
        yield (
            "fused_decoder",
            lambda: FusedDecoder(read_structure(model), shapes, layer_options(model, vocab_size), compress),
        )
        yield "packed_linears", lambda: with_packed_linears(model, compress)


def _verify_far(
    model: PreTrainedModel,
    candidate: Forward,
    shapes: list[LayerShape],
    backend: AttentionBackend,
    page_size: int,
    vocab_size: int,
    max_model_len: int,
) -> None:
    """Compares logits at the end of the window: what depends on the position must agree there too.

    Raises UnsupportedModel.
    """
    limit = min(MAX_PROBE_TOKENS, max_model_len)
    spans = across_keys({*backend.key_borders(), page_size}, limit) or [(0, limit)]
    num_tokens, kept = spans[-1][1], torch.tensor(witnesses(spans))
    ids = probe_ids(num_tokens, vocab_size, torch.device("cpu"), 104729).unsqueeze(0)
    positions = torch.arange(max_model_len - num_tokens, max_model_len).unsqueeze(0)
    num_pages = -(-num_tokens // page_size)
    layout, _ = layout_of([torch.arange(num_pages)], [(0, num_tokens)], page_size)
    logits = []
    for forward in (model, candidate):
        step = PagedStep(KVPages(shapes, num_pages, page_size, torch.float32, torch.device("cpu")), layout, backend)
        with torch.inference_mode():
            arguments = {cache_argument(forward): step, "paged_step": step, "position_ids": positions}
            logits.append(forward(input_ids=ids, logits_to_keep=kept, **arguments).logits)
    difference = (logits[0] - logits[1]).abs().max().item()
    bound = _FAR_TOLERANCE * max(1.0, logits[0].std().item())
    if not difference <= bound:
        raise UnsupportedModel(
            f"other logits at the end of the window (difference {difference:.3g}, bound {bound:.3g})"
        )
