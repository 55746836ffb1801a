"""Refuses by its config a model that short probes would let through and that long requests would get wrong."""

from typing import Any

from replica.errors import UnsupportedModel

_SERVED_LAYER_TYPES = ("full_attention", "sliding_attention")


def refuse_unservable_config(text_config: Any) -> None:
    """Raises UnsupportedModel with the cause."""
    _refuse_batch_dependent_rope(text_config)
    others = sorted(set(getattr(text_config, "layer_types", None) or ()) - set(_SERVED_LAYER_TYPES))
    if others:
        raise UnsupportedModel(
            f"it has layers of type {', '.join(others)}; only {' and '.join(_SERVED_LAYER_TYPES)} can be served"
        )


def is_windowed(text_config: Any, layer_idx: int) -> bool:
    """Whether the config gives the layer a sliding window."""
    if getattr(text_config, "sliding_window", None) is None:
        return False
    layer_types = getattr(text_config, "layer_types", None)
    return layer_types is None or layer_types[layer_idx] == "sliding_attention"


def _refuse_batch_dependent_rope(text_config: Any) -> None:
    """RoPE that looks at the longest position of the flat batch would let a long neighbour change others' keys."""
    parameters = getattr(text_config, "rope_parameters", None) or getattr(text_config, "rope_scaling", None) or {}
    per_layer_type = [value for value in parameters.values() if isinstance(value, dict)]
    for rope in per_layer_type or [parameters]:
        kind = rope.get("rope_type", rope.get("type")) or "default"
        if "dynamic" in kind or kind == "longrope":  # the very test of transformers' `dynamic_rope_update`
            raise UnsupportedModel(
                f"rope_type {kind!r} scales with the longest position in the batch, so a request's keys would depend "
                "on its neighbours; only fixed RoPE types can be served"
            )
