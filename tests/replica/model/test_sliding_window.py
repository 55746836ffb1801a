"""Layers with a sliding window, prompts around its edge, in every mixture of chunks, hits and preemption (A7)."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from replica.attention.paged_step import PagedStep
from tests.replica.tiny_models import (
    SLIDING_WINDOW,
    answered_prompt,
    generate,
    greedy,
    random_model,
    random_prompt,
    reference_model,
    run,
    tiny_config,
    tiny_engine,
)

FAMILIES = ("Mistral", "Gemma2", "Gemma3")
"""All layers windowed; every second one; five of six."""
LENGTHS = (1, 4, 7, 8, 9, 10, 15, 16, 17, 24, 25, 33)
"""Around one, two and three windows of 8, and around blocks of 3 and 16."""
MAX_TOKENS = 5

families = pytest.mark.parametrize("family", FAMILIES)


@cache
def answered(family: str) -> dict[int, tuple[list[int], list[int]]]:
    """Length -> a prompt and its answer. All prompts share a beginning and differ in the last token, so that each may
    find most of itself in the cache, cut at another place."""
    model, base = reference_model(family), random_prompt(max(LENGTHS), seed=9)
    return {length: answered_prompt(model, length, MAX_TOKENS, prefix=base[: length - 1]) for length in LENGTHS}


@families
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("order", [1, -1], ids=["shorter first", "longer first"])
def test_a7_hits_that_end_anywhere_around_the_window(family: str, block_size: int, order: int) -> None:
    engine = tiny_engine(family, block_size=block_size)
    for _ in range(2):
        for length in LENGTHS[::order]:
            prompt, answer = answered(family)[length]
            assert run(engine, [greedy(prompt, MAX_TOKENS)]) == [answer], length
    # The second time everything but the last token is there, in whole blocks.
    assert engine.counters.num_hit_tokens >= sum((length - 1) // block_size * block_size for length in LENGTHS)


@families
@pytest.mark.parametrize("block_size", [3, 16])
@pytest.mark.parametrize("budget", [3, 8, 9])
def test_chunks_that_end_anywhere_around_the_window(family: str, block_size: int, budget: int) -> None:
    engine = tiny_engine(family, block_size=block_size, max_num_batched_tokens=budget, max_num_seqs=3)
    pairs = list(answered(family).values())
    requests = [greedy(prompt, MAX_TOKENS) for prompt, _ in pairs]
    assert run(engine, requests) == [answer for _, answer in pairs]
    # Now hits, chunks and decodes in one batch.
    assert run(engine, [greedy(prompt, MAX_TOKENS) for prompt, _ in reversed(pairs)]) == [a for _, a in reversed(pairs)]


@families
@pytest.mark.parametrize("num_blocks", [12, 14, 17])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preemption_while_decoding_across_the_edge(family: str, num_blocks: int, prefix_caching: bool) -> None:
    """Four requests of 5 to 8 blocks each, 12 to 17 blocks in all: one is thrown out and computed again."""
    lengths, max_tokens = (6, 7, 9, 17), 14
    pairs = [answered_prompt(reference_model(family), length, max_tokens) for length in lengths]
    engine = tiny_engine(family, num_blocks=num_blocks, watermark=0.0, prefix_caching=prefix_caching)
    assert run(engine, [greedy(prompt, max_tokens) for prompt, _ in pairs]) == [answer for _, answer in pairs]
    assert engine.scheduler.num_preemptions > 0
    assert engine.manager.pool.num_active == 0


@families
def test_the_same_prompt_four_times(family: str) -> None:
    engine = tiny_engine(family)
    prompt, answer = answered(family)[33]
    # Where hits are finer than pages the third answer is the wrong one (A7).
    assert [run(engine, [greedy(prompt, MAX_TOKENS)]) for _ in range(4)] == [[answer]] * 4


@families
@pytest.mark.parametrize("change", [-1, 1])
def test_these_prompts_tell_a_window_that_is_off_by_one(
    family: str, change: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the tests above: they can fail."""
    # Torch's backend, because the fused decoder does not attend through PagedStep.
    engine, original = tiny_engine(family, attention_backend="torch"), PagedStep.attend

    def attend(self: PagedStep, *args: Any) -> Any:
        *others, options = args
        if options.sliding_window is not None:
            options = replace(options, sliding_window=options.sliding_window + change)
        return original(self, *others, options)

    monkeypatch.setattr(PagedStep, "attend", attend)
    pairs = [answered(family)[length] for length in LENGTHS if length > SLIDING_WINDOW]
    wrong = [run(engine, [greedy(prompt, MAX_TOKENS)]) != [answer] for prompt, answer in pairs]
    assert sum(wrong) >= len(wrong) // 2


@families
def test_the_window_is_what_makes_these_answers(family: str) -> None:
    unlimited = random_model(tiny_config(family, sliding_window=512))
    prompt, answer = answered(family)[33]
    assert generate(unlimited, prompt, MAX_TOKENS) != answer


def test_pages_that_every_windowed_layer_has_left_behind_are_counted() -> None:
    """Window 8, pages of 4: after n computed tokens the next query sees none before n - 7."""
    engine = tiny_engine("Gemma3", max_num_batched_tokens=64)
    engine.add(greedy(random_prompt(11, seed=1), 10))
    engine.step()
    counts = []
    while engine.has_work:
        counts.append((engine.scheduler.running[0].num_computed_tokens, engine.num_pages_out_of_window))
        engine.step()
    assert counts == [(n, (n - 7) // 4) for n in range(11, 20)]
    assert engine.num_pages_out_of_window == 0


def test_a_model_without_windows_leaves_nothing_behind() -> None:
    engine = tiny_engine("Llama")
    engine.add(greedy(random_prompt(40, seed=2), 4))
    engine.step()
    assert engine.num_pages_out_of_window == 0
