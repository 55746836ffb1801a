"""`deterministic`: logits, tokens and logprobs are the same to the bit wherever the pages come from."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cache.block_hasher import BlockHasher
from replica.config import EngineConfig
from replica.engine.engine import Engine
from replica.factory import build_engine
from replica.kernels.native_library import native_unavailable_because
from replica.messages import GenerateRequest, PageAddress, Pull, TokenLogprobs
from replica.sampling_params import SamplingParams
from replica.transfer.page_puller import PagePuller
from replica.transfer.page_server import PageServer
from tests.replica.tiny_models import BLOCK_SIZE, loaded, random_prompt, tiny_model
from tests.waiting import wait_until

B = BLOCK_SIZE
SECRET = b"0123456789abcdef"
PROMPT = random_prompt(8 * B + 3, seed=1)
OTHER = random_prompt(11 * B + 3, seed=2)
CASES = [("Llama", "torch"), ("Gemma3", "torch"), ("DeepseekV2", "torch")]
if native_unavailable_because() is None:
    CASES += [("Llama", "native"), ("Gemma3", "native"), ("GPT2", "native")]

Answer = list[TokenLogprobs]


@contextmanager
def engine_of(family: str, **config: object) -> Iterator[Engine]:
    """13 blocks, so that PROMPT and OTHER throw each other out."""
    settings = {"block_size": B, "num_blocks": 13, "max_num_batched_tokens": 11, "max_num_seqs": 4, "watermark": 0.0}
    engine_config = EngineConfig(model="tiny", **(settings | {"deterministic": True} | config))  # type: ignore[arg-type]
    engine = build_engine(
        engine_config,
        BlockHasher(SECRET, family, B),
        loaded=loaded(tiny_model(family)),
        transfer=lambda identity, page_bytes: PagePuller(SECRET, identity, page_bytes),
    )
    try:
        yield engine
    finally:
        if engine.loader is not None:
            engine.loader.close()
        if engine.manager.tiers is not None:
            engine.manager.tiers.close()


def ask(engine: Engine, prompt: list[int], source: PageAddress | None = None, **pull: int) -> Answer:
    """The greedy answer's tokens with the five likeliest ones' logprobs."""
    sampling = SamplingParams(max_tokens=5, temperature=0.0, top_logprobs=5)
    request = GenerateRequest("a", prompt, sampling, 0.0)
    if source is not None:
        request = replace(request, pull=Pull(source, pull.get("num_tokens", 8 * B)))
    engine.add(request)
    answer: Answer = []
    while engine.has_work:
        for chunk in engine.step():
            answer += chunk.logprobs
    return answer


def cold(family: str, backend: str) -> Answer:
    with engine_of(family, attention_backend=backend, prefix_caching=False) as engine:
        return ask(engine, PROMPT)


def write_to_disk(engine: Engine) -> None:
    """PROMPT's pages, by being used and thrown out twice."""
    assert engine.manager.tiers is not None
    disk = engine.manager.tiers.disk
    keys = engine._hasher.keys(PROMPT)
    for prompt in (PROMPT, OTHER) * 2:
        ask(engine, prompt)
    wait_until(lambda: disk is not None and all(map(disk.find, keys)), "the prompt's pages lie on disk")


def disk_of(folder: Path, size: int = 1 << 20) -> dict[str, object]:
    return {"disk_kv_folder": str(folder), "disk_kv_size": size, "disk_kv_write_rate": 1 << 30}


@pytest.mark.parametrize(("family", "backend"), CASES)
def test_pages_from_anywhere_give_the_same_bits(family: str, backend: str, tmp_path: Path) -> None:
    expected = cold(family, backend)
    with ExitStack() as stack:
        host = stack.enter_context(engine_of(family, attention_backend=backend, host_kv_memory=1 << 20))
        for prompt in (PROMPT, OTHER):
            ask(host, prompt)
        assert ask(host, PROMPT) == expected
        assert host.counters.num_loaded_tokens["host"] == 8 * B

        disk = stack.enter_context(engine_of(family, attention_backend=backend, **disk_of(tmp_path)))
        write_to_disk(disk)
        ask(disk, OTHER)
        before = disk.counters.num_loaded_tokens["disk"]
        assert ask(disk, PROMPT) == expected
        assert disk.counters.num_loaded_tokens["disk"] - before == 8 * B

        giver = stack.enter_context(engine_of(family, attention_backend=backend, pull=True))
        ask(giver, PROMPT)
        assert giver.page_source is not None
        server = PageServer(SECRET, "giver", giver.page_source, "127.0.0.1")
        stack.callback(server.close)
        taker = stack.enter_context(engine_of(family, attention_backend=backend, pull=True))
        assert ask(taker, PROMPT, server.address) == expected
        assert taker.counters.num_loaded_tokens == {"peer": 8 * B}

        # Two pages of its own, the next ones of its memory, the rest of the peer.
        mixed = stack.enter_context(engine_of(family, attention_backend=backend, pull=True, host_kv_memory=1 << 20))
        ask(mixed, PROMPT[: 5 * B])
        ask(mixed, OTHER)
        ask(mixed, PROMPT[: 2 * B + 1])
        assert ask(mixed, PROMPT, server.address) == expected
        assert mixed.counters.num_loaded_tokens["peer"] >= 3 * B
        assert mixed.counters.num_loaded_tokens["host"] >= 2 * B


OTHER_NUMBERS = [{"deterministic": False}, {"deterministic": False, "attention_backend": "auto"}]


@pytest.mark.parametrize("config", OTHER_NUMBERS, ids=["as fast as it can", "another backend"])
def test_pages_that_were_computed_otherwise_are_not_taken(config: dict[str, object], tmp_path: Path) -> None:
    """A folder outlives the cluster that filled it, and the next one may be told to be deterministic."""
    with engine_of("Llama", **({"attention_backend": "torch"} | config | disk_of(tmp_path))) as engine:
        write_to_disk(engine)
    expected = cold("Llama", "torch")
    with engine_of("Llama", attention_backend="torch", **disk_of(tmp_path)) as engine:
        disk = engine.manager.tiers.disk  # type: ignore[union-attr]
        wait_until(lambda: disk.is_loaded, "the folder has been read")  # type: ignore[union-attr]
        assert ask(engine, PROMPT) == expected
        assert not engine.counters.num_loaded_tokens


def test_a_peer_that_computes_otherwise_gives_nothing() -> None:
    expected = cold("Llama", "torch")
    with (
        engine_of("Llama", attention_backend="torch", deterministic=False, pull=True) as giver,
        engine_of("Llama", attention_backend="torch", pull=True) as taker,
    ):
        ask(giver, PROMPT)
        assert giver.page_source is not None
        server = PageServer(SECRET, "giver", giver.page_source, "127.0.0.1")
        try:
            assert ask(taker, PROMPT, server.address) == expected
        finally:
            server.close()
        assert taker.counters.num_failed_loads == {"other_identity": 1}


@pytest.mark.parametrize("size", [1, 4096, 8 * 4096])
def test_a_disk_that_holds_no_page_is_refused_by_the_settings_name(size: int, tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=rf"disk_kv_size must be at least \d+ bytes for one page, got {size}"),
        engine_of("Llama", **disk_of(tmp_path, size)),
    ):
        pass
