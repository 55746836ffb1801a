"""Makes transformers models write into our pages and attend over them."""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from replica.attention.backend import LayerOptions
from replica.attention.paged_step import PagedStep
from replica.errors import UnsupportedModel

IMPLEMENTATION = "warmlane_paged"
_HARMLESS = {"dropout", "position_ids", "is_causal", "output_attentions", "use_cache", "cache", "cache_position"}

_MEANING = {"s_aux": "attention sinks (s_aux)"}


def paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged_step: PagedStep,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function of every layer. query: [1, num_heads, num_tokens, head_dim]; key and value are what
    `PagedStep.update` returned or what the layer made of it. Returns [1, num_tokens, num_heads, head_dim].

    Raises UnsupportedModel for an option that would change the result and that no backend knows (attention sinks, a
    mask or a bias of the model's own).
    """
    unknown = {name for name, given in options.items() if given is not None and given is not False} - _HARMLESS
    if attention_mask is not None or unknown:
        what = ", ".join(_MEANING.get(name, name) for name in sorted(unknown)) or "a mask of its own"
        raise UnsupportedModel(f"its attention needs {what}, which paged attention does not offer")
    if not hasattr(module, "layer_idx"):
        raise UnsupportedModel("its attention layers do not know their index")
    layer = LayerOptions(query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap)
    return paged_step.attend(module.layer_idx, query[0].transpose(0, 1), key, value, layer).unsqueeze(0), None


def register() -> None:
    """Tells transformers of our attention; doing it again is harmless. Masks are the backends' business, so none is
    built."""
    AttentionInterface.register(IMPLEMENTATION, paged_attention_forward)
    AttentionMaskInterface.register(IMPLEMENTATION, lambda *args, **kwargs: None)
