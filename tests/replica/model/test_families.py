"""Each family answers as `generate` of transformers does, token for token, in every mixture (A6, A8, A10)."""

from functools import cache

import pytest
import torch

from replica.attention.pages import LayerShape
from replica.model.backend_choice import BACKENDS
from replica.model.probe import witness_layers
from tests.replica.tiny_models import (
    BLOCK_SIZE,
    FAMILIES,
    VOCAB_SIZE,
    answered_prompt,
    generate,
    greedy,
    reference_model,
    run,
    tiny_engine,
    tiny_model,
)

LENGTHS = (1, 7, 16, 33, 50)
"""Below a block, in the middle of one, at the edge of one, and far beyond the sliding window."""
MAX_TOKENS = 9


@cache
def answered(family: str) -> tuple[list[list[int]], list[list[int]]]:
    """Ragged prompts and what transformers answers; the last one begins like the one before (a shared prefix)."""
    model = reference_model(family)
    pairs = [answered_prompt(model, length, MAX_TOKENS) for length in LENGTHS]
    pairs.append(answered_prompt(model, 45, MAX_TOKENS, prefix=pairs[-1][0][:30]))
    prompts, answers = zip(*pairs, strict=True)
    return list(prompts), list(answers)


def cpu_backends() -> list[str]:
    cpu = torch.device("cpu")
    return [name for name, backend in BACKENDS.items() if backend.unavailable_because(cpu, torch.float32) is None]


families = pytest.mark.parametrize("family", FAMILIES)


@families
def test_alone_cold_and_warm(family: str) -> None:
    prompts, answers = answered(family)
    engine = tiny_engine(family)
    for prompt, answer in zip(prompts, answers, strict=True):
        engine.reset_prefix_cache()
        before = engine.counters.num_hit_tokens
        assert run(engine, [greedy(prompt, MAX_TOKENS)]) == [answer]
        assert engine.counters.num_hit_tokens == before
        assert run(engine, [greedy(prompt, MAX_TOKENS)]) == [answer]
        # At most all but the last token, in whole blocks (A1).
        assert engine.counters.num_hit_tokens == before + (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE


@families
@pytest.mark.parametrize("backend", cpu_backends())
def test_all_at_once_cold_then_warm(family: str, backend: str) -> None:
    prompts, answers = answered(family)
    engine = tiny_engine(family, attention_backend=backend)
    requests = [greedy(prompt, MAX_TOKENS) for prompt in prompts]
    assert run(engine, requests) == answers
    before = engine.counters.num_hit_tokens
    assert run(engine, [greedy(prompt, MAX_TOKENS) for prompt in prompts]) == answers
    hits = sum((len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE for prompt in prompts)
    assert engine.counters.num_hit_tokens == before + hits


@families
def test_the_same_prompt_twice_in_one_batch(family: str) -> None:
    prompts, answers = answered(family)
    engine = tiny_engine(family, prefix_caching=False)
    # Neither is taken for the other's beginning (A8).
    assert run(engine, [greedy(prompts[-1], MAX_TOKENS) for _ in range(2)]) == [answers[-1]] * 2


@families
@pytest.mark.parametrize("budget", [6, 11])
def test_prefill_in_chunks_beside_decodes(family: str, budget: int) -> None:
    prompts, answers = answered(family)
    engine = tiny_engine(family, max_num_batched_tokens=budget, max_num_seqs=6)
    assert run(engine, [greedy(prompt, MAX_TOKENS) for prompt in prompts]) == answers
    assert engine.counters.num_steps > sum(LENGTHS) // budget
    assert run(engine, [greedy(prompt, MAX_TOKENS) for prompt in reversed(prompts)]) == answers[::-1]
    assert engine.counters.num_hit_tokens > 0


@families
def test_pages_larger_than_blocks(family: str) -> None:
    """Hits keep the grain of a block: a page that matches in part is copied, latents and windowed layers too."""
    prompts, answers = answered(family)
    engine = tiny_engine(family, page_size=4 * BLOCK_SIZE, max_num_batched_tokens=11, max_num_seqs=6)
    assert run(engine, [greedy(prompt, MAX_TOKENS) for prompt in prompts]) == answers
    before = engine.counters.num_hit_tokens
    assert run(engine, [greedy(prompt, MAX_TOKENS) for prompt in prompts]) == answers
    hits = sum((len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE for prompt in prompts)
    assert engine.counters.num_hit_tokens == before + hits


@families
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_across_preemptions(family: str, prefix_caching: bool) -> None:
    """Pages for all prompts, but not for all answers (A24)."""
    prompts, answers = answered(family)
    shorter = slice(0, 4)
    num_blocks = sum(-(-len(prompt) // BLOCK_SIZE) for prompt in prompts[shorter]) + 2
    engine = tiny_engine(family, num_blocks=num_blocks, watermark=0.0, prefix_caching=prefix_caching)
    assert run(engine, [greedy(prompt, MAX_TOKENS) for prompt in prompts[shorter]]) == answers[shorter]
    assert engine.scheduler.num_preemptions > 0
    assert engine.manager.pool.num_active == 0


@families
def test_an_answer_becomes_part_of_the_next_prompt(family: str) -> None:
    """A second turn hits pages that were written while decoding."""
    prompts, answers = answered(family)
    engine = tiny_engine(family)
    run(engine, [greedy(prompts[2], MAX_TOKENS)])
    second_turn = prompts[2] + answers[2] + prompts[1]
    expected = generate(reference_model(family), second_turn, 4)
    assert run(engine, [greedy(second_turn, 4)]) == [expected]
    # The last generated token was never computed, so its block is not there.
    reusable = (len(prompts[2]) + len(answers[2]) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert engine.counters.num_hit_tokens == reusable


@pytest.mark.parametrize("family", ["DeepseekV2", "DeepseekV3"])
def test_latent_attention_keeps_latents_in_its_pages(family: str) -> None:
    """One latent and one rotary key a token, whatever the number of heads."""
    shapes = witness_layers(tiny_model(family), VOCAB_SIZE)
    assert shapes == [LayerShape(num_kv_heads=1, key_dim=16, value_dim=8, expanded=True)] * 2
    assert not any(shape.expanded for shape in witness_layers(tiny_model("Llama"), VOCAB_SIZE))
