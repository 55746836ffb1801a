"""Sampling through a running engine: stops, penalties, seeds and logprobs, also across preemptions."""

import math
from typing import Any

import pytest
import torch

from replica.engine.engine import Engine
from replica.errors import RequestRefused
from replica.messages import FinishReason, GenerateRequest, TokenChunk
from replica.sampling.logprobs import LEAST_LOGPROB, logprobs_of
from replica.sampling_params import SamplingParams
from tests.replica.tiny_models import VOCAB_SIZE, generate, greedy, random_prompt, reference_model, run, tiny_engine


def request(request_id: str, prompt: list[int], **sampling: Any) -> GenerateRequest:
    return GenerateRequest(request_id, prompt, SamplingParams(**{"temperature": 0.0, **sampling}), 0.0)


def chunks_of(engine: Engine, *requests: GenerateRequest) -> dict[str, list[TokenChunk]]:
    chunks: dict[str, list[TokenChunk]] = {each.request_id: [] for each in requests}
    for each in requests:
        engine.add(each)
    while engine.has_work:
        for chunk in engine.step():
            chunks[chunk.request_id].append(chunk)
    assert engine._outputs.is_empty
    return chunks


def tokens_of(chunks: list[TokenChunk]) -> list[int]:
    return [token_id for chunk in chunks for token_id in chunk.token_ids]


def reference_logprobs(prompt: list[int]) -> torch.Tensor:
    """[tokens, vocabulary] of transformers' own forward pass."""
    return torch.log_softmax(reference_model()(torch.tensor([prompt])).logits[0], dim=-1)


DRAWING = {"temperature": 1.0, "seed": 11, "max_tokens": 20}


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"top_p": 0.9},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
        {"min_p": 0.05, "logit_bias": ((65, 5.0),)},
        {"min_tokens": 15, "stop_token_ids": (65, 66)},
    ],
    ids=lambda rules: "+".join(rules) or "plain",
)
def test_35_a_preempted_request_draws_what_it_would_have_drawn(rules: dict[str, Any]) -> None:
    """Penalties, stops and the random stream survive: the same tokens in a pool too small for all as alone."""
    prompts = [random_prompt(15, seed=seed) for seed in (21, 22)]
    requests = [request(f"{i}", prompt, **DRAWING, **rules) for i, prompt in enumerate(prompts)]
    alone = [tokens_of(chunks_of(tiny_engine(), each)[each.request_id]) for each in requests]
    tight = tiny_engine(num_blocks=12, watermark=0.0)
    together = chunks_of(tight, *requests)
    assert tight.scheduler.num_preemptions >= 1
    assert [tokens_of(chunks) for chunks in together.values()] == alone


def test_min_tokens_holds_back_every_way_to_stop() -> None:
    prompt = random_prompt(9, seed=3)
    free = generate(reference_model(), prompt, 12)
    engine = tiny_engine(eos_token_ids=[free[1]])
    chunks = chunks_of(engine, request("r", prompt, max_tokens=12, min_tokens=5, stop_token_ids=(free[2],)))["r"]
    tokens = tokens_of(chunks)
    assert len(tokens) >= 6 or chunks[-1].finish_reason is FinishReason.LENGTH
    assert not {free[1], free[2]} & set(tokens[:5])


def test_stop_strings_are_looked_for_behind_min_tokens() -> None:
    prompt = random_prompt(9, seed=3)
    engine = tiny_engine()
    bias = ((ord("a"), 100.0),)
    chunks = chunks_of(engine, request("r", prompt, max_tokens=9, min_tokens=4, stop=("a",), logit_bias=bias))["r"]
    assert "".join(chunk.text for chunk in chunks) == "aaaa"
    assert chunks[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("field", "value"), [("logit_bias", ((VOCAB_SIZE, 1.0),)), ("logit_bias", ((-1, 1.0),)), ("stop_token_ids", (-3,))]
)
def test_19_ids_outside_the_vocabulary_are_refused_and_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(RequestRefused) as info:
        tiny_engine().add(request("r", [1, 2], **{field: value}))
    assert info.value.param == field


def test_12_no_tokens_at_all_computes_the_prompt_alone() -> None:
    engine, prompt = tiny_engine(), random_prompt(13, seed=4)
    (chunk,) = chunks_of(engine, request("r", prompt, max_tokens=0))["r"]
    assert (chunk.text, chunk.token_ids, chunk.finish_reason) == ("", [], FinishReason.LENGTH)
    assert chunk.usage is not None
    assert (chunk.usage.prompt_tokens, chunk.usage.completion_tokens) == (13, 0)
    assert engine.counters.num_computed_positions == 13
    assert engine.counters.num_generated_tokens == 0
    run(engine, [greedy(prompt, 1)])  # and warms the cache
    assert engine.counters.num_hit_tokens == 12


def test_logprobs_of_generated_tokens_equal_the_models() -> None:
    prompt = random_prompt(11, seed=5)
    chunks = chunks_of(tiny_engine(), request("r", prompt, max_tokens=6, top_logprobs=3))["r"]
    tokens = tokens_of(chunks)
    expected = reference_logprobs(prompt + tokens)
    told = [each for chunk in chunks for each in chunk.logprobs]
    assert [each.token_id for each in told] == tokens
    for position, each in enumerate(told, start=len(prompt) - 1):
        assert each.logprob == pytest.approx(expected[position, each.token_id].item(), abs=1e-4)
        assert [token_id for token_id, _ in each.top] == expected[position].topk(3).indices.tolist()
        assert each.top[0] == (each.token_id, each.logprob)  # greedy


def test_13_logprobs_are_of_the_unmasked_distribution() -> None:
    """top_k, penalties, bias and temperature change what is drawn and not what is told."""
    prompt = random_prompt(11, seed=6)
    rules = {"temperature": 1.0, "seed": 1, "top_k": 1, "logit_bias": ((65, 100.0),), "presence_penalty": 2.0}
    chunks = chunks_of(tiny_engine(), request("r", prompt, max_tokens=2, top_logprobs=5, **rules))["r"]
    assert tokens_of(chunks) == [65, 65]
    first = chunks[0].logprobs[0]
    expected = reference_logprobs(prompt)[-1]
    assert first.logprob == pytest.approx(expected[65].item(), abs=1e-4)
    assert [value for _, value in first.top] == pytest.approx(expected.topk(5).values.tolist(), abs=1e-4)


def test_13_minus_infinity_is_clipped() -> None:
    logits = torch.tensor([[0.0, -math.inf, -math.inf]])
    (told,) = logprobs_of(logits, [1], [3])
    assert told.logprob == LEAST_LOGPROB
    assert [value for _, value in told.top] == [0.0, LEAST_LOGPROB, LEAST_LOGPROB]


@pytest.mark.parametrize("budget", [512, 16, 8])
def test_a36_c43_prompt_logprobs_do_not_read_the_cache_and_equal_a_cold_run(budget: int) -> None:
    prompt = random_prompt(37, seed=7)
    engine = tiny_engine(max_num_batched_tokens=budget, max_num_seqs=8)
    asked = {"max_tokens": 2, "top_logprobs": 2, "prompt_logprobs": True}
    cold = chunks_of(engine, request("cold", prompt, **asked))["cold"]
    run(engine, [greedy(prompt, 4)])
    hits = engine.counters.num_hit_tokens
    warm = chunks_of(engine, request("warm", prompt, **asked))["warm"]
    assert engine.counters.num_hit_tokens == hits > 0
    assert list(warm[0].prompt_logprobs) == list(cold[0].prompt_logprobs)
    assert all(not chunk.prompt_logprobs for chunk in warm[1:])
    expected = reference_logprobs(prompt)
    for position, each in enumerate(cold[0].prompt_logprobs):
        assert each.token_id == prompt[position + 1]
        assert each.logprob == pytest.approx(expected[position, each.token_id].item(), abs=1e-4)
    assert len(cold[0].prompt_logprobs) == len(prompt) - 1


def test_prompt_logprobs_survive_a_preemption_and_disturb_nobody() -> None:
    prompts = [random_prompt(15, seed=seed) for seed in (21, 22)]
    asked = {"max_tokens": 20, "top_logprobs": 1, "prompt_logprobs": True}
    expected = chunks_of(tiny_engine(), request("1", prompts[1], **asked))["1"]
    tight = tiny_engine(num_blocks=12, watermark=0.0)
    together = chunks_of(tight, request("0", prompts[0], max_tokens=20), request("1", prompts[1], **asked))
    assert tight.scheduler.num_preemptions >= 1
    assert tokens_of(together["0"]) == generate(reference_model(), prompts[0], 20)
    told = [each for chunk in together["1"] for each in chunk.prompt_logprobs]
    assert [each.token_id for each in told] == prompts[1][1:]
    assert [each.logprob for each in told] == pytest.approx([e.logprob for e in expected[0].prompt_logprobs], abs=1e-5)
    assert tokens_of(together["1"]) == tokens_of(expected)
