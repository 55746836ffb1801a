"""Tiny random models of many families, a byte-level tokenizer, and engines over them: what all engine tests share.

A token id below 256 is the byte of that value, so any text is its own tokenisation and any answer can be read.
"""

import itertools
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

from cache.block_hasher import BlockHasher
from replica.config import EngineConfig
from replica.engine.engine import Engine
from replica.factory import build_engine
from replica.messages import GenerateRequest, TokenChunk
from replica.model.loader import LoadedModel
from replica.sampling_params import SamplingParams

EOS_ID = 256
VOCAB_SIZE = 260
WINDOW = 512
"""Tokens that prompt and answer may have together."""
BLOCK_SIZE = 4
SLIDING_WINDOW = 8

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": WINDOW,
    "bos_token_id": None,
    "eos_token_id": EOS_ID,
    "pad_token_id": EOS_ID + 1,
    "tie_word_embeddings": False,  # a random model with tied embeddings only repeats its last token
}
_GEMMA: dict[str, Any] = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": SLIDING_WINDOW}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {"sliding_window": SLIDING_WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "Qwen3": {"head_dim": 16},
    "Mistral": {"sliding_window": SLIDING_WINDOW},
    "Gemma": {"head_dim": 16, "num_key_value_heads": 1},
    "Gemma2": {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 20.0},
    # Five windowed layers and one that sees everything, with a RoPE base of its own for each kind.
    "Gemma3": {**_GEMMA, "num_hidden_layers": 6, "num_key_value_heads": 1},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Phi3": {"sliding_window": None},
    "Olmo2": {},
    "Granite": {"attention_multiplier": 0.2, "residual_multiplier": 0.7, "embedding_multiplier": 2.0},
    "GPTNeoX": {"rotary_pct": 0.5},
    "SmolLM3": {"no_rope_layer_interval": 2},
    "GPT2": {"n_inner": 64},
    # Multi-head latent attention: the cache holds latents, from which the layer computes keys and values.
    "DeepseekV2": {**_LATENT, "q_lora_rank": None},
    "DeepseekV3": {**_LATENT, "q_lora_rank": 24},
}
"""Family (transformers' class prefix) -> what its config has beyond the common sizes."""

FUSED = {"Llama", "Qwen2", "Qwen3", "Mistral", "Gemma", "Gemma2", "Gemma3", "SmolLM3"}
"""Families whose whole forward pass the native decoder computes."""

_CONFIG_CLASS = {"Gemma3": "Gemma3TextConfig"}
_request_numbers = itertools.count()


def tiny_config(family: str, **overrides: Any) -> Any:
    config_class = getattr(transformers, _CONFIG_CLASS.get(family, f"{family}Config"))
    return config_class(**{**_BASE, **FAMILIES.get(family, {}), **overrides})


def random_model(config: Any, seed: int = 0) -> PreTrainedModel:
    """A model in eager attention whose every parameter counts: biases and norms are random too.

    Weights of variance 1 / fan_in keep activations of order 1 through all layers, so that the logits are far from ties
    and depend on every position.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.normal_(0.0, 0.3 if "embed" in name else 1.5 * parameter.shape[-1] ** -0.5)
    model.generation_config.eos_token_id = None
    return model.eval().requires_grad_(False)


@cache
def tiny_model(family: str = "Llama", seed: int = 0) -> PreTrainedModel:
    """Built once per test session for engines; shared by all of them, because a model keeps nothing of a request."""
    return random_model(tiny_config(family), seed)


@cache
def reference_model(family: str = "Llama", seed: int = 0) -> PreTrainedModel:
    """The same weights again, for transformers' own `generate` with its own cache and eager attention."""
    return random_model(tiny_config(family), seed)


@cache
def byte_tokenizer() -> Tokenizer:
    """Ids 0 to 255 are bytes, 256 is the end of the text; no merges."""
    tokenizer = Tokenizer(models.BPE({letter: byte for byte, letter in bytes_to_unicode().items()}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ("<|end|>", "<|pad|>", "<|user|>", "<|assistant|>")
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def loaded(model: PreTrainedModel, eos_token_ids: Iterable[int] = ()) -> LoadedModel:
    """For `build_engine(..., loaded=...)`. No token ends a request unless named, so that lengths are known."""
    return LoadedModel(
        model, byte_tokenizer(), frozenset(eos_token_ids), VOCAB_SIZE, WINDOW, torch.float32, torch.device("cpu")
    )


def tiny_engine(family: str | PreTrainedModel = "Llama", *, eos_token_ids: Iterable[int] = (), **config: Any) -> Engine:
    """An engine over a family's shared model or a given one. config: what differs from small defaults."""
    model = tiny_model(family) if isinstance(family, str) else family
    settings = {"block_size": BLOCK_SIZE, "num_blocks": 256, "max_num_batched_tokens": 512, **config}
    engine_config = EngineConfig(model="tiny", **settings)
    hasher = BlockHasher(b"0123456789abcdef", "tiny", engine_config.block_size)
    return build_engine(engine_config, hasher, loaded=loaded(model, eos_token_ids))


def greedy(prompt: Sequence[int], max_tokens: int, request_id: str | None = None) -> GenerateRequest:
    """request_id: a fresh one where not given."""
    request_id = request_id or f"request-{next(_request_numbers)}"
    return GenerateRequest(request_id, list(prompt), SamplingParams(max_tokens=max_tokens, temperature=0.0), 0.0)


def run(engine: Engine, requests: Sequence[GenerateRequest]) -> list[list[int]]:
    """Adds all requests at once and steps until idle, checking the cache's invariants after every step.

    Returns each request's generated tokens. Raises RuntimeError where a request ended by an error.
    """
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for chunk in engine.step():
            tokens[chunk.request_id] += chunk.token_ids
            _raise_error(chunk)
        engine.manager.check_invariants()
    return [tokens[request.request_id] for request in requests]


def _raise_error(chunk: TokenChunk) -> None:
    if chunk.error is not None:
        raise RuntimeError(f"{chunk.request_id}: {chunk.error}")


class NearTie(ValueError):
    """Rounding may decide which token is greedy."""


def answered_prompt(
    model: PreTrainedModel, length: int, max_tokens: int, prefix: Sequence[int] = ()
) -> tuple[list[int], list[int]]:
    """A random prompt of that length that begins with `prefix`, and what `generate` answers without any near tie."""
    for seed in range(20):
        prompt = [*prefix, *random_prompt(length - len(prefix), 1000 * length + seed)]
        try:
            return prompt, generate(model, prompt, max_tokens)
        except NearTie:
            continue
    raise NearTie(f"none of 20 prompts of {length} tokens has a clear answer")


def generate(model: PreTrainedModel, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """What transformers itself answers, greedy, with its own cache.

    Raises NearTie where two tokens were nearly equally likely: such a prompt tests luck, not the engine.
    """
    ids = torch.tensor([list(prompt)])
    answer = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    for logits in answer.logits:
        best, second = logits[0].topk(2).values.tolist()
        if best - second < 3e-4:
            raise NearTie(f"two tokens have logits {best} and {second}")
    tokens: list[int] = answer.sequences[0, len(prompt) :].tolist()
    return tokens


def random_prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (length,), generator=generator).tolist()
