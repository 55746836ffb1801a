"""The default model: greedy answers are transformers' own, wherever the pages of a prompt come from."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from cache.block_hasher import BlockHasher
from cluster.models.store import resolve_model
from replica.config import EngineConfig
from replica.engine.engine import Engine
from replica.factory import build_engine
from replica.messages import Pull
from replica.model.loader import LoadedModel, load_model
from replica.transfer.page_puller import PagePuller
from replica.transfer.page_server import PageServer
from tests.replica.tiny_models import generate, greedy, random_prompt, run
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

B = 16
SECRET = b"0123456789abcdef"
NUM_TOKENS = 6
PROMPT = [300 + token for token in random_prompt(9 * B + 5, seed=2)]
OTHER = [600 + token for token in random_prompt(12 * B + 5, seed=3)]


@pytest.fixture(scope="module")
def answer() -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(resolve_model(), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        return generate(model, PROMPT, NUM_TOKENS)


@pytest.fixture(scope="module")
def loaded_model() -> LoadedModel:
    return replace(load_model(EngineConfig(model=str(resolve_model()))), eos_token_ids=frozenset())


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def engine_of(loaded_model: LoadedModel, stack: ExitStack, **config: object) -> Engine:
    """13 blocks: PROMPT and OTHER throw each other out, but for the first pages of neither."""
    settings = {"num_blocks": 13, "max_num_batched_tokens": 40, "max_num_seqs": 2, "watermark": 0.0, "pull": True}
    engine = build_engine(
        EngineConfig(model="default", **(settings | config)),  # type: ignore[arg-type]
        BlockHasher(SECRET, "default", B),
        loaded=loaded_model,
        transfer=lambda identity, page_bytes: PagePuller(SECRET, identity, page_bytes),
    )
    assert engine.loader is not None
    if engine.manager.tiers is not None:
        stack.callback(engine.manager.tiers.close)
    stack.callback(engine.loader.close)
    return engine


def test_pages_of_memory_disk_and_peer(
    loaded_model: LoadedModel, answer: list[int], stack: ExitStack, tmp_path: Path
) -> None:
    giver = engine_of(loaded_model, stack, host_kv_memory=64 * 2**20)
    assert run(giver, [greedy(PROMPT, NUM_TOKENS)]) == [answer]
    run(giver, [greedy(OTHER, 1)])
    assert run(giver, [greedy(PROMPT, NUM_TOKENS)]) == [answer]
    assert giver.counters.num_loaded_tokens["host"] == 9 * B

    disk = {"disk_kv_folder": str(tmp_path), "disk_kv_size": 64 * 2**20, "disk_kv_write_rate": 2**30}
    taker = engine_of(loaded_model, stack, **disk)
    for prompt in (PROMPT, OTHER) * 2:  # what is thrown out for the second time is written
        run(taker, [greedy(prompt, 1)])
    tier, keys = taker.manager.tiers, taker._hasher.keys(PROMPT)
    wait_until(lambda: tier is not None and all(map(tier.find, keys)), "the prompt's pages lie on disk")
    before = taker.counters.num_loaded_tokens["disk"]
    assert run(taker, [greedy(PROMPT, NUM_TOKENS)]) == [answer]
    assert taker.counters.num_loaded_tokens["disk"] - before == 9 * B

    assert giver.page_source is not None
    server = PageServer(SECRET, "giver", giver.page_source, "127.0.0.1")
    stack.callback(server.close)
    run(taker, [greedy(OTHER, 1)])
    assert tier is not None and tier.disk is not None
    for file in list(tmp_path.rglob(f"{keys[5].hex()}.page")):  # pages behind it are of no use to a chain
        file.unlink()
    request = replace(greedy(PROMPT, NUM_TOKENS), pull=Pull(server.address, 9 * B))
    assert run(taker, [request]) == [answer]
    assert taker.counters.num_loaded_tokens["peer"] == 4 * B
    assert run(taker, [greedy(PROMPT, NUM_TOKENS)]) == [answer]
