"""A real model whose layers look back 512 tokens in five of six: Gemma 3 270M, if `fetch_gemma` has put it there."""

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from cache.block_hasher import BlockHasher
from replica.engine import Engine
from replica.engine_config import EngineConfig
from replica.engine_factory import build_engine
from replica.model_loader import LoadedModel, load_model
from tests.replica.fetch_gemma import gemma_folder
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


@pytest.fixture
def engine(config: EngineConfig, gemma: LoadedModel) -> Engine:
    return build_engine(config, BlockHasher(b"0123456789abcdef", "gemma", 16), loaded=gemma)


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
