"""`deterministic`: what a request gets is the same to the bit, alone and cold or warm and in any mixture."""

import random

import pytest
import torch

from replica.errors import UnsupportedModel
from replica.kernels.fused_decoder import FusedDecoder
from replica.kernels.native_library import native_unavailable_because
from replica.messages import GenerateRequest, TokenLogprobs
from replica.model.fast_path import fastest_forward
from replica.model.invariance_probe import verify_invariant
from replica.model.probe import witness_layers
from replica.model.token_by_token import TokenByToken
from replica.sampling_params import SamplingParams
from tests.replica.tiny_models import FAMILIES, VOCAB_SIZE, WINDOW, loaded, random_prompt, tiny_engine, tiny_model

BACKENDS = ["torch"] if native_unavailable_because() else ["native", "torch"]
# The torch backend computes token by token: a family of each kind will do.
CASES = [("Llama", "torch"), ("Gemma2", "torch"), ("DeepseekV2", "torch")]
CASES += [(family, "native") for family in sorted(FAMILIES) if "native" in BACKENDS]
Answer = list[TokenLogprobs]


def play(engine, prompts: list[list[int]], rng: random.Random | None = None) -> list[Answer]:
    """Greedy answers with the five likeliest tokens' logprobs. rng: requests come at random steps, else at once."""
    answers: dict[str, Answer] = {}
    waiting = list(enumerate(prompts))
    while waiting or engine.has_work:
        while waiting and (rng is None or not engine.has_work or rng.random() < 0.4):
            number, prompt = waiting.pop(0)
            sampling = SamplingParams(max_tokens=12, temperature=0.0, top_logprobs=5)
            answers[str(number)] = []
            engine.add(GenerateRequest(str(number), prompt, sampling, 0.0))
        for chunk in engine.step():
            answers[chunk.request_id] += chunk.logprobs
    return list(answers.values())


@pytest.mark.parametrize(("family", "backend"), CASES)
def test_a4_c42_logits_are_the_same_bits_in_every_mixture(family: str, backend: str) -> None:
    rng = random.Random(family)
    shared = random_prompt(37, 1)
    prompts = [shared[: rng.randint(1, 37)] + random_prompt(rng.randint(1, 30), seed) for seed in range(7)]
    config = {"deterministic": True, "attention_backend": backend}
    alone = [play(tiny_engine(family, prefix_caching=False, **config), [prompt])[0] for prompt in prompts]
    # A small budget cuts prompts, and 30 blocks of 4 tokens hold two or three of the seven: hits and preemptions.
    engine = tiny_engine(family, num_blocks=30, max_num_seqs=6, max_num_batched_tokens=11, watermark=0.0, **config)
    for _ in range(2):
        assert play(engine, prompts, rng) == alone
    assert engine.counters.num_hit_tokens > 0
    assert engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize("deterministic", [False, True])
def test_it_costs_nothing_where_the_fused_decoder_serves(deterministic: bool) -> None:
    if "native" not in BACKENDS:
        pytest.skip(f"no native kernels: {native_unavailable_because()}")
    engine = tiny_engine("Llama", deterministic=deterministic)
    assert isinstance(engine._runner._model, FusedDecoder)


def test_a_pass_that_follows_its_neighbours_is_found() -> None:
    """A model whose logits move by one bit when another request is in the step."""
    model = tiny_model("Llama")
    shapes = witness_layers(model, VOCAB_SIZE)
    engine = tiny_engine("Llama", attention_backend="torch")
    backend = engine._runner._backend

    class Leaning(TokenByToken):
        def forward(self, input_ids, position_ids, paged_step, **rest):
            output = super().forward(input_ids, position_ids, paged_step, **rest)
            if len(paged_step.layout.page_tables) > 1:
                output.logits = torch.nextafter(output.logits, torch.tensor(1e9))
            return output

    verify_invariant(TokenByToken(model), shapes, backend, 4, VOCAB_SIZE, WINDOW)
    with pytest.raises(UnsupportedModel, match="last bits"):
        verify_invariant(Leaning(model), shapes, backend, 4, VOCAB_SIZE, WINDOW)


def test_products_of_a_library_are_not_trusted() -> None:
    model = tiny_model("Llama")
    shapes = witness_layers(model, VOCAB_SIZE)
    backend = tiny_engine("Llama", attention_backend="torch")._runner._backend
    with pytest.raises(UnsupportedModel, match="not packed"):
        verify_invariant(model, shapes, backend, 4, VOCAB_SIZE, WINDOW)
    forward, _ = fastest_forward(model, shapes, backend, 4, VOCAB_SIZE, WINDOW, deterministic=True)
    assert isinstance(forward, TokenByToken)


def test_other_numbers_than_float32_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    half = loaded(tiny_model("Llama"))
    monkeypatch.setattr(
        "tests.replica.tiny_models.loaded",
        lambda *_: type(half)(
            half.model, half.tokenizer, half.eos_token_ids, VOCAB_SIZE, WINDOW, torch.bfloat16, torch.device("cpu")
        ),
    )
    with pytest.raises(ValueError, match=r"deterministic needs float32 on a CPU, got torch\.bfloat16 on cpu"):
        tiny_engine("Llama", deterministic=True)


def test_a6_fifty_at_once_get_what_each_gets_alone() -> None:
    prompts = [random_prompt(3 + seed, seed) for seed in range(50)]
    config = {"deterministic": True, "num_blocks": 1200, "max_num_seqs": 50}
    together = play(tiny_engine(**config), prompts)
    assert together == [play(tiny_engine(**config), [prompt])[0] for prompt in prompts]
