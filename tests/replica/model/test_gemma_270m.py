"""A real model whose layers look back 512 tokens in five of six: Gemma 3 270M, if `fetch_gemma` has put it there."""

from collections.abc import Iterator
from itertools import zip_longest

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from cache.block_hasher import BlockHasher
from replica.config import EngineConfig
from replica.engine.engine import Engine
from replica.factory import build_engine
from replica.kernels.native_library import kernel_constants, native_unavailable_because
from replica.model.loader import LoadedModel, load_model
from replica.model.probe_spans import across_keys, across_rows
from tests.replica.model.fetch_gemma import gemma_folder
from tests.replica.paged_requests import Requests
from tests.replica.tiny_models import generate, greedy, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not gemma_folder().is_dir(), reason="gemma-3-270m is not in the cache folder"),
]
MAX_TOKENS = 8
SENTENCE = "The house at the end of the street has been empty for years. "
BEGINNINGS = {"Paris is the capital of": " France", "Monday, Tuesday, Wednesday,": " Thursday, Friday"}


@pytest.fixture(scope="module")
def config() -> EngineConfig:
    return EngineConfig(model=str(gemma_folder()), num_blocks=256, max_model_len=2048, max_num_batched_tokens=256)


@pytest.fixture(scope="module")
def gemma(config: EngineConfig) -> Iterator[LoadedModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield load_model(config)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(gemma_folder(), dtype=torch.float32, attn_implementation="eager")
    model.generation_config.eos_token_id = None
    return model.eval()


@pytest.fixture(scope="module")
def engine(config: EngineConfig, gemma: LoadedModel) -> Engine:
    return build_engine(config, BlockHasher(b"0123456789abcdef", "gemma", 16), loaded=gemma)


def test_logits_are_the_models_own_on_both_sides_of_every_border(
    engine: Engine, gemma: LoadedModel, reference: PreTrainedModel
) -> None:
    """Tiles, parts, pages and the window of 512, twice each, beside a second request in chunks; decodes and chunks.

    The bound is that of float32 in this model: eager attention itself is up to 2e-4 of the spread from float64.
    """
    runner = engine._runner
    constants = kernel_constants() if native_unavailable_because() is None else {"keys": {}, "rows": {}}
    steps = [
        across_keys([*constants["keys"].values(), 16, gemma.model.config.sliding_window], 1100),
        across_rows(constants["rows"].values(), 200),
    ]
    text = gemma.tokenizer.encode(SENTENCE * 90).ids
    prompts = [text[first : first + spans[-1][1]] for first, spans in enumerate(steps) if spans]
    requests = Requests(runner._model, gemma.model, prompts, page_size=16, backend=runner._backend)
    for spans in zip_longest(*(spans for spans in steps if spans)):
        requests.step({i: span[1] - span[0] for i, span in enumerate(spans) if span is not None})
    for prompt, logits in zip(prompts, requests.logits, strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([prompt]), use_cache=False).logits[0]
        difference = (torch.stack(logits) - expected).abs().max().item()
        print(f"largest difference of logits over {len(prompt)} tokens: {difference:.2g}")
        assert difference < 2e-3 * expected.std().item()


def test_it_answers_and_equals_generate_beyond_the_window(
    engine: Engine, gemma: LoadedModel, reference: PreTrainedModel
) -> None:
    """Cold in chunks of 256, then warm with a hit that ends beyond the window, then all at once."""
    start = gemma.tokenizer.encode(SENTENCE * 45).ids
    prompts = [gemma.tokenizer.encode(beginning).ids for beginning in BEGINNINGS]
    prompts += [start + prompt[1:] for prompt in prompts]  # without a second <bos>
    assert gemma.model.config.sliding_window < len(start)
    answers = [generate(reference, prompt, MAX_TOKENS) for prompt in prompts]
    for answer, expected in zip(answers, BEGINNINGS.values(), strict=False):
        assert gemma.tokenizer.decode(answer).startswith(expected)
    assert [run(engine, [greedy(prompt, MAX_TOKENS)]) for prompt in prompts] == [[answer] for answer in answers]
    assert engine.counters.num_hit_tokens == len(start) // 16 * 16
    assert run(engine, [greedy(prompt, MAX_TOKENS) for prompt in prompts]) == answers
