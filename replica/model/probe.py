"""Finds out what a model stores per layer and asks of attention, in one forward pass that computes nothing."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from replica.attention import transformers_bridge
from replica.attention.backend import LayerOptions
from replica.attention.pages import LayerShape
from replica.errors import UnsupportedModel
from replica.model.refusals import is_windowed, refuse_unservable_config

_NUM_WITNESSED = 24
"""Tokens of the pass that only looks at what layers store."""
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
        if key.shape[-2] != _NUM_WITNESSED:
            raise UnsupportedModel(f"layer {layer_idx} stores {key.shape[-2]} keys for {_NUM_WITNESSED} tokens")
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
    positions = torch.arange(_NUM_WITNESSED, device=model.device).unsqueeze(0)
    arguments = {cache_argument(model): witness, "paged_step": witness, "position_ids": positions}
    with torch.inference_mode():
        explained(model, input_ids=probe_ids(_NUM_WITNESSED, vocab_size, model.device).unsqueeze(0), **arguments)
    return witness


def use_paged_attention(model: PreTrainedModel) -> None:
    transformers_bridge.register()
    explained(model.set_attn_implementation, transformers_bridge.IMPLEMENTATION)


def probe_ids(num_tokens: int, vocab_size: int, device: torch.device, step: int = 7919) -> torch.Tensor:
    """[num_tokens] token ids that look random and are always the same."""
    return torch.arange(num_tokens, device=device) * step % vocab_size


def explained(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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
