"""A whole engine on a GPU: cold and warm, alone and batched, over every attention backend that runs there."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cache.block_hasher import BlockHasher
from replica.config import EngineConfig
from replica.engine.engine import Engine
from replica.factory import build_engine
from replica.model.backend_choice import BACKENDS
from replica.model.loader import LoadedModel
from tests.replica.tiny_models import VOCAB_SIZE, byte_tokenizer, greedy, random_prompt, run

WINDOW = 2048


def llama(dtype: torch.dtype) -> LlamaForCausalLM:
    """Random, with heads of a size that all kernels take."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=WINDOW, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM._from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3 if "embed" in name else 1.5 * parameter.shape[-1] ** -0.5)
    model.generation_config.eos_token_id = None
    return model.to("cuda", dtype).eval().requires_grad_(False)


def engine_on(backend: str, dtype: torch.dtype) -> Engine:
    reason = BACKENDS[backend].unavailable_because(torch.device("cuda"), dtype)
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    loaded = LoadedModel(llama(dtype), byte_tokenizer(), frozenset(), VOCAB_SIZE, WINDOW, dtype, torch.device("cuda"))
    config = EngineConfig(
        model="random", device="cuda", attention_backend=backend, num_blocks=2048, max_num_batched_tokens=192
    )
    return build_engine(config, BlockHasher(b"0123456789abcdef", "random", config.block_size), loaded=loaded)


def test_in_float32_it_answers_as_generate_does() -> None:
    engine, model = engine_on("torch", torch.float32), llama(torch.float32)
    prompts = [random_prompt(length, length) for length in (1, 40, 300)]
    expected = [
        model.generate(torch.tensor([prompt], device="cuda"), max_new_tokens=8, do_sample=False)[0, len(prompt) :]
        for prompt in prompts
    ]
    for _ in range(2):  # cold, then warm
        assert run(engine, [greedy(prompt, 8) for prompt in prompts]) == [ids.tolist() for ids in expected]
    assert engine.counters.num_hit_tokens > 0


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "native"])
def test_in_bfloat16_hits_are_exact_and_every_request_is_answered(backend: str) -> None:
    """Tokens may differ where two are nearly equally likely, so counts are compared."""
    engine = engine_on(backend, torch.bfloat16)
    prompts = [random_prompt(300, 1)[:280] + random_prompt(20 + seed, seed) for seed in range(12)]
    cold = run(engine, [greedy(prompt, 16) for prompt in prompts])
    assert [len(tokens) for tokens in cold] == [16] * 12
    hits = engine.counters.num_hit_tokens
    warm = run(engine, [greedy(prompt, 16) for prompt in prompts])
    assert [len(tokens) for tokens in warm] == [16] * 12
    assert engine.counters.num_hit_tokens - hits == sum((len(prompt) - 1) // 16 * 16 for prompt in prompts)
