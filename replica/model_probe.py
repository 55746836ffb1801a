"""Finds out what a model stores per layer, and proves on a few tokens that paged attention serves it right."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from replica.attention import transformers_bridge
from replica.attention.backend import AttentionBackend, BatchLayout, LayerOptions
from replica.attention.paged_step import PagedStep
from replica.config_refusals import is_windowed, refuse_unservable_config
from replica.errors import UnsupportedModel
from replica.kv_pages import KVPages, LayerShape

_NUM_TOKENS = 24
_CUTS = (13, 7)
"""Each of the two probed requests prefills up to here and continues from here, reading pages of its first part."""
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.15}
"""Largest difference of logits, relative to their spread."""

Forward = Any
"""A transformers model, or what is called as one: `device`, `dtype`, `forward`."""


def cache_argument(model: PreTrainedModel) -> str:
    """transformers renames `past_key_values` to `cache` (5.24 accepts both, 5.40 will not)."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class _LayerWitness:
    """Stands in for cache and pages during one forward pass and notes what each layer stores and attends to.

    stored, attended: layer -> shapes of one token's key and value. options: layer -> what its attention asks for.
    """

    is_compileable = False
    is_sliding: tuple[bool, ...] = ()

    def __init__(self) -> None:
        self.stored: dict[int, LayerShape] = {}
        self.attended: dict[int, LayerShape] = {}
        self.options: dict[int, LayerOptions] = {}

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if key.shape[-2] != _NUM_TOKENS:
            raise UnsupportedModel(f"layer {layer_idx} stores {key.shape[-2]} keys for {_NUM_TOKENS} tokens")
        self.stored[layer_idx] = LayerShape(key.shape[1], key.shape[-1], value.shape[-1])
        return key, value

    def attend(
        self, layer_idx: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: LayerOptions
    ) -> torch.Tensor:
        self.attended[layer_idx] = LayerShape(key.shape[1], key.shape[-1], value.shape[-1])
        self.options[layer_idx] = options
        return query.new_zeros(*query.shape[:2], value.shape[-1])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def shapes(self, text_config: Any) -> list[LayerShape]:
        """What each layer stores. Raises UnsupportedModel where pages cannot carry that."""
        layers = range(text_config.num_hidden_layers)
        missing = [i for i in layers if i not in self.stored]
        if missing or len(self.stored) != len(layers):
            raise UnsupportedModel(f"layers {missing} keep no keys and values of their own (recurrent or shared state)")
        blind = [i for i in layers if i not in self.attended]
        if blind:
            raise UnsupportedModel(f"layers {blind} do not attend through transformers' attention interface")
        unwindowed = [i for i in layers if is_windowed(text_config, i) and self.options[i].sliding_window is None]
        if unwindowed:
            raise UnsupportedModel(f"layers {unwindowed} do not tell their attention the sliding window that they have")
        return [
            replace(
                self.stored[i],
                expanded=self.stored[i] != self.attended[i],
                sliding_window=self.options[i].sliding_window,
            )
            for i in layers
        ]


def probe_model(model: PreTrainedModel, vocab_size: int) -> tuple[list[LayerShape], torch.Tensor]:
    """Runs the model in its own eager attention, then switches it to paged attention for good and looks at its layers.

    Returns each layer's shape and the reference logits. Raises UnsupportedModel with the cause.
    """
    _explained(model.set_attn_implementation, "eager")  # one that was served before may be probed again
    with torch.inference_mode():
        reference = _explained(model, input_ids=_probe_ids(vocab_size, model.device), use_cache=False).logits
    return witness_layers(model, vocab_size), reference


def witness_layers(model: PreTrainedModel, vocab_size: int) -> list[LayerShape]:
    """What each layer stores per token; computes nothing, so a model on torch's meta device will do.

    Raises UnsupportedModel with the cause. The model is on paged attention from here on.
    """
    refuse_unservable_config(model.config.get_text_config())
    return _witness(model, vocab_size).shapes(model.config.get_text_config())


def layer_options(model: PreTrainedModel, vocab_size: int) -> list[LayerOptions]:
    """What each layer asks of attention. Raises UnsupportedModel."""
    witness = _witness(model, vocab_size)
    return [witness.options[i] for i in range(model.config.get_text_config().num_hidden_layers)]


def _witness(model: PreTrainedModel, vocab_size: int) -> _LayerWitness:
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModel("it computes the logits of all tokens of a step (its forward has no logits_to_keep)")
    use_paged_attention(model)
    witness = _LayerWitness()
    positions = torch.arange(_NUM_TOKENS, device=model.device).unsqueeze(0)
    arguments = {cache_argument(model): witness, "paged_step": witness, "position_ids": positions}
    with torch.inference_mode():
        _explained(model, input_ids=_probe_ids(vocab_size, model.device)[:1], **arguments)
    return witness


def verify_paged(
    model: PreTrainedModel,
    shapes: list[LayerShape],
    backend: AttentionBackend,
    page_size: int,
    vocab_size: int,
    reference: torch.Tensor,
) -> None:
    """Runs the probe's two rows as two requests of one flat batch through pages in two steps, cut at different tokens,
    and compares with the reference logits.

    Catches whatever the bridge cannot carry (ALiBi, masks and positions of the model's own, layers that mix neighbours)
    without knowing models by name. Raises UnsupportedModel.
    """
    ids = _probe_ids(vocab_size, model.device)
    length = -(-_NUM_TOKENS // page_size)
    pages = KVPages(shapes, len(ids) * length, page_size, model.dtype, model.device)
    tables = torch.arange(len(ids) * length - 1, -1, -1, device=model.device).view(len(ids), length)
    logits = torch.full_like(reference, float("nan"))
    for spans in ([(0, cut) for cut in _CUTS], [(cut, _NUM_TOKENS) for cut in _CUTS]):
        layout, positions = layout_of(tables, spans, page_size)
        step = PagedStep(pages, layout, backend)
        rows = torch.cat([torch.full((end - start,), i) for i, (start, end) in enumerate(spans)]).to(model.device)
        arguments = {cache_argument(model): step, "paged_step": step, "position_ids": positions.unsqueeze(0)}
        with torch.inference_mode():
            output = _explained(model, input_ids=ids[rows, positions].unsqueeze(0), **arguments)
        logits[rows, positions] = output.logits[0]
    difference = (logits - reference).abs().max().item()
    bound = _TOLERANCE[model.dtype] * max(1.0, reference.std().item())
    if not difference <= bound:
        raise UnsupportedModel(
            f"paged attention gives other logits than the model itself (difference {difference:.3g}, bound {bound:.3g})"
        )


def layout_of(tables: torch.Tensor, spans: list[tuple[int, int]], page_size: int) -> tuple[BatchLayout, torch.Tensor]:
    """The flat batch in which request i computes its tokens spans[i], and the positions of its rows."""
    starts, slots, positions = [0], [], []
    for table, (start, end) in zip(tables, spans, strict=True):
        positions.append(torch.arange(start, end, device=tables.device))
        slots.append(table[positions[-1] // page_size] * page_size + positions[-1] % page_size)
        starts.append(starts[-1] + end - start)
    context_lens = tuple(end for _, end in spans)
    return BatchLayout(tuple(starts), context_lens, tuple(tables), torch.cat(slots)), torch.cat(positions)


def use_paged_attention(model: PreTrainedModel) -> None:
    transformers_bridge.register()
    _explained(model.set_attn_implementation, transformers_bridge.IMPLEMENTATION)


def _probe_ids(vocab_size: int, device: torch.device) -> torch.Tensor:
    """[2, _NUM_TOKENS]"""
    first = torch.arange(_NUM_TOKENS, device=device) * 7919 % vocab_size
    return torch.stack([first, first.flip(0)])


def _explained(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Whatever goes wrong inside a foreign model becomes a refusal that names the cause."""
    try:
        return run(*args, **kwargs)
    except UnsupportedModel:
        raise
    except AttributeError as error:
        if not isinstance(error.obj, _LayerWitness):
            raise UnsupportedModel(f"it does not run on paged attention: AttributeError: {error}") from error
        raise UnsupportedModel(
            f"it asks its cache for {error.name!r}: it keeps more than keys and values (recurrent state, an index)"
        ) from error
    except Exception as error:
        raise UnsupportedModel(f"it does not run on paged attention: {type(error).__name__}: {error}") from error
