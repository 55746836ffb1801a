"""Reads a transformers model as the decoder that csrc/decoder.c computes, or says what does not fit.

The model is taken by its parts, never by its name: which norms, projections and activation a layer has. Whether the
parts are joined the usual way is not visible here; the caller compares logits (fast_path.py).
"""

from dataclasses import dataclass
from typing import Any

import torch

from replica.kernels.packed_weight import Gate

_LAYER_NORMS = (
    {"input_layernorm", "post_attention_layernorm"},
    # Gemma 2 and 3: here post_attention_layernorm norms what attention gives out, not what the MLP gets.
    {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"},
)
_ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class NotFusable(Exception):
    """Why the fused decoder cannot compute this model."""


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Modules and weights of one layer; norms are effective weights, None where the layer has none."""

    query: torch.nn.Linear
    key: torch.nn.Linear
    value: torch.nn.Linear
    attention_out: torch.nn.Linear
    gate: torch.nn.Linear
    up: torch.nn.Linear
    mlp_out: torch.nn.Linear
    activation: Gate
    input_norm: torch.Tensor
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    attention_out_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    mlp_out_norm: torch.Tensor | None
    norm_eps: float
    uses_rope: bool
    rope_kind: str | None


@dataclass(frozen=True, slots=True)
class DecoderStructure:
    """embedding, rotary: the model's own modules. logit_softcap: logits become cap * tanh(logits / cap)."""

    embedding: torch.nn.Module
    rotary: torch.nn.Module
    layers: tuple[LayerParts, ...]
    final_norm: torch.Tensor
    final_norm_eps: float
    head: torch.nn.Linear
    logit_softcap: float | None


def read_structure(model: torch.nn.Module) -> DecoderStructure:
    """Raises NotFusable with the part that does not fit."""
    _expect(_names(model) == {"model", "lm_head"}, "it is not a body and an LM head")
    body: Any = model.model
    _expect(_names(body) == {"embed_tokens", "layers", "norm", "rotary_emb"}, f"its body has {sorted(_names(body))}")
    norm, norm_eps = _norm(body.norm)
    return DecoderStructure(
        embedding=body.embed_tokens,
        rotary=body.rotary_emb,
        layers=tuple(_layer(layer) for layer in body.layers),
        final_norm=norm,
        final_norm_eps=norm_eps,
        head=_linear(model.lm_head),
        logit_softcap=getattr(model.config.get_text_config(), "final_logit_softcapping", None),
    )


def _layer(layer: Any) -> LayerParts:
    norms = {name for name in _names(layer) if name.endswith("norm")}
    _expect(norms in _LAYER_NORMS, f"its layers have the norms {sorted(norms)}")
    _expect(_names(layer) == norms | {"self_attn", "mlp"}, f"its layers have {sorted(_names(layer))}")
    attention, mlp = layer.self_attn, layer.mlp
    head_norms = _names(attention) - _ATTENTION_PARTS
    _expect(
        _names(attention) >= _ATTENTION_PARTS and head_norms in (set(), {"q_norm", "k_norm"}),
        f"its attention has {sorted(_names(attention))}",
    )
    _expect(_names(mlp) in (_MLP_PARTS, _MLP_PARTS - {"act_fn"}), f"its MLP has {sorted(_names(mlp))}")
    norms_outputs = "pre_feedforward_layernorm" in norms
    weights = {name: _norm(getattr(layer, name)) for name in norms}
    weights |= {name: _norm(getattr(attention, name)) for name in head_norms}
    epsilons = {eps for _, eps in weights.values()}
    _expect(len(epsilons) == 1, f"its norms have the epsilons {sorted(epsilons)}")
    found = {name: weight for name, (weight, _) in weights.items()}
    if head_norms:
        _expect(found["q_norm"].numel() == attention.head_dim, "it norms queries over all heads at once")
    return LayerParts(
        query=_linear(attention.q_proj),
        key=_linear(attention.k_proj),
        value=_linear(attention.v_proj),
        attention_out=_linear(attention.o_proj),
        gate=_linear(mlp.gate_proj),
        up=_linear(mlp.up_proj),
        mlp_out=_linear(mlp.down_proj),
        activation=_activation(mlp.act_fn),
        input_norm=found["input_layernorm"],
        query_norm=found.get("q_norm"),
        key_norm=found.get("k_norm"),
        attention_out_norm=found["post_attention_layernorm"] if norms_outputs else None,
        mlp_norm=found["pre_feedforward_layernorm" if norms_outputs else "post_attention_layernorm"],
        mlp_out_norm=found.get("post_feedforward_layernorm"),
        norm_eps=epsilons.pop(),
        uses_rope=bool(getattr(attention, "use_rope", True)),
        rope_kind=getattr(attention, "layer_type", None),
    )


def _names(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()}


def _expect(fits: bool, otherwise: str) -> None:
    if not fits:
        raise NotFusable(otherwise)


def _linear(module: Any) -> torch.nn.Linear:
    _expect(type(module) is torch.nn.Linear, f"a projection is a {type(module).__name__}")
    _expect(module.weight.dtype == torch.float32, f"its weights are {module.weight.dtype}")
    return module


def _activation(function: Any) -> Gate:
    """By what it computes: classes for SiLU and GELU differ from release to release."""
    x = torch.linspace(-8, 8, 161)
    candidates: dict[Gate, torch.Tensor] = {
        "silu": torch.nn.functional.silu(x),
        "gelu_tanh": torch.nn.functional.gelu(x, approximate="tanh"),
    }
    for name, expected in candidates.items():
        if torch.allclose(function(x), expected, rtol=1e-5, atol=1e-6):
            return name
    raise NotFusable(f"its activation is {type(function).__name__}")


def _norm(module: Any) -> tuple[torch.Tensor, float]:
    """Effective weight and epsilon of an RMS norm; some models keep the weight minus one."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = getattr(module, "weight", None)
    if not isinstance(eps, float) or getattr(module, "bias", None) is not None:
        raise NotFusable(f"{type(module).__name__} is no RMS norm")
    if weight is None or weight.dtype != torch.float32:
        raise NotFusable(f"{type(module).__name__} has no fp32 weight")
    x = torch.linspace(-3.0, 2.0, weight.numel()).unsqueeze(0)
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    for candidate in (weight, 1.0 + weight):
        if torch.allclose(module(x), scaled * candidate, rtol=1e-5, atol=1e-6):
            return candidate.detach().contiguous(), eps
    raise NotFusable(f"{type(module).__name__} is no RMS norm")
