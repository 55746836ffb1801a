"""Finds out what a model stores per layer, and proves on a few tokens that paged attention serves it right."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from replica.attention import transformers_bridge
from replica.attention.backend import AttentionBackend, BatchLayout
from replica.attention.paged_step import PagedStep
from replica.errors import UnsupportedModel
from replica.kv_pages import KVPages, LayerShape

_NUM_TOKENS = 24
_CUT = 13
"""The probe prefills up to here and continues from here, so that the second part reads pages of the first."""
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.15}
"""Largest difference of logits, relative to their spread."""


def cache_argument(model: PreTrainedModel) -> str:
    """transformers renames `past_key_values` to `cache` (5.24 accepts both, 5.40 will not)."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class _ShapeRecorder:
    """Stands in for a cache and notes what each layer would store."""

    is_compileable = False
    is_sliding: tuple[bool, ...] = ()

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.shapes[layer_idx] = LayerShape(key.shape[1], key.shape[-1], value.shape[-1])
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0


def probe_model(model: PreTrainedModel, vocab_size: int) -> tuple[list[LayerShape], torch.Tensor]:
    """Runs the model in its own eager attention. Returns each layer's shape and the reference logits.

    Raises UnsupportedModel where a layer keeps no keys and values (recurrent state) or the model cannot run so.
    """
    _explained(model.set_attn_implementation, "eager")  # one that was served before may be probed again
    recorder = _ShapeRecorder()
    ids = _probe_ids(vocab_size, model.device)
    with torch.inference_mode():
        reference = _explained(model, input_ids=ids, use_cache=False).logits
        _explained(model, input_ids=ids, position_ids=_positions(ids), **{cache_argument(model): recorder})
    num_layers = model.config.get_text_config().num_hidden_layers
    missing = sorted(set(range(num_layers)) - set(recorder.shapes))
    if missing or len(recorder.shapes) != num_layers:
        raise UnsupportedModel(f"layers {missing} keep no keys and values of their own (recurrent or shared state)")
    return [recorder.shapes[i] for i in range(num_layers)], reference


def verify_paged(
    model: PreTrainedModel,
    shapes: list[LayerShape],
    backend: AttentionBackend,
    page_size: int,
    vocab_size: int,
    reference: torch.Tensor,
) -> None:
    """Runs the probe through pages in two parts, out of order, and compares with the reference logits.

    Catches whatever the bridge cannot carry (ALiBi, cached latents, masks of the model's own) without knowing models by
    name. Raises UnsupportedModel.
    """
    ids = _probe_ids(vocab_size, model.device)
    num_pages = -(-_NUM_TOKENS // page_size)
    pages = KVPages(shapes, num_pages, page_size, model.dtype, model.device)
    table = torch.arange(num_pages - 1, -1, -1, device=model.device)
    parts = []
    for start, end in ((0, _CUT), (_CUT, _NUM_TOKENS)):
        positions = torch.arange(start, end, device=model.device)
        slots = table[positions // page_size] * page_size + positions % page_size
        step = PagedStep(pages, BatchLayout((0, end - start), (end,), (table,), slots), backend)
        arguments = {cache_argument(model): step, "paged_step": step, "position_ids": positions.unsqueeze(0)}
        with torch.inference_mode():
            parts.append(_explained(model, input_ids=ids[:, start:end], **arguments).logits)
    difference = (torch.cat(parts, dim=1) - reference).abs().max().item()
    bound = _TOLERANCE[model.dtype] * max(1.0, reference.std().item())
    if not difference <= bound:
        raise UnsupportedModel(
            f"paged attention gives other logits than the model itself (difference {difference:.3g}, bound {bound:.3g})"
        )


def use_paged_attention(model: PreTrainedModel) -> None:
    transformers_bridge.register()
    _explained(model.set_attn_implementation, transformers_bridge.IMPLEMENTATION)


def _probe_ids(vocab_size: int, device: torch.device) -> torch.Tensor:
    return (torch.arange(_NUM_TOKENS, device=device) * 7919 % vocab_size).unsqueeze(0)


def _positions(ids: torch.Tensor) -> torch.Tensor:
    return torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)


def _explained(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Whatever goes wrong inside a foreign model becomes a refusal that names the cause."""
    try:
        return run(*args, **kwargs)
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(f"it does not run on paged attention: {type(error).__name__}: {error}") from error
