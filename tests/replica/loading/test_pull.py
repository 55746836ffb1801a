"""Two engines, real sockets: what one has computed the other takes from it, and what it cannot have it computes."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cache.block_hasher import BlockHasher
from replica.config import EngineConfig
from replica.engine.async_engine import AsyncEngine
from replica.engine.engine import Engine
from replica.factory import build_engine
from replica.messages import GenerateRequest, PageAddress, Pull
from replica.transfer.page_puller import PagePuller
from replica.transfer.page_server import PageServer
from tests.replica.tiny_models import BLOCK_SIZE, greedy, loaded, random_prompt, run, tiny_engine, tiny_model
from tests.waiting import eventually

B = BLOCK_SIZE
SECRET = b"0123456789abcdef"
PROMPT = random_prompt(8 * B + 3, seed=1)


def pulling_engine(**config: object) -> Engine:
    settings = {"block_size": B, "num_blocks": 64, "max_num_batched_tokens": 64, "pull": True, **config}
    engine_config = EngineConfig(model="tiny", **settings)  # type: ignore[arg-type]
    hasher = BlockHasher(SECRET, "tiny", engine_config.block_size)
    return build_engine(
        engine_config,
        hasher,
        loaded=loaded(tiny_model()),
        transfer=lambda identity, page_bytes: PagePuller(SECRET, identity, page_bytes),
    )


@pytest.fixture
def giver() -> Iterator[tuple[Engine, PageServer]]:
    """It has computed PROMPT."""
    engine = pulling_engine()
    run(engine, [greedy(PROMPT, 1)])
    assert engine.page_source is not None
    server = PageServer(SECRET, "giver", engine.page_source, "127.0.0.1")
    yield engine, server
    server.close()
    assert engine.loader is not None
    engine.loader.close()


@pytest.fixture
def taker() -> Iterator[Engine]:
    engine = pulling_engine()
    yield engine
    assert engine.loader is not None
    engine.loader.close()


def pulling(source: PageAddress, num_tokens: int, max_tokens: int = 4, prompt: list[int] = PROMPT) -> GenerateRequest:
    return replace(greedy(prompt, max_tokens), pull=Pull(source, num_tokens))


def cold(max_tokens: int = 4, prompt: list[int] = PROMPT) -> list[list[int]]:
    return [run(tiny_engine(prefix_caching=False), [greedy(prompt, max_tokens)])[0]]


@pytest.mark.parametrize("num_tokens", [0, 1, B - 1, B, B + 1, 4 * B, 8 * B, 8 * B + 3, 1000])
def test_what_the_giver_holds_is_not_computed(giver: tuple[Engine, PageServer], taker: Engine, num_tokens: int) -> None:
    """All of it, also what the router did not know of; where it knew of no page nobody is asked."""
    expected = 8 * B if num_tokens >= B else 0
    before = taker.counters.num_computed_positions
    assert run(taker, [pulling(giver[1].address, num_tokens)]) == cold()
    assert taker.counters.num_loaded_tokens["peer"] == taker.counters.num_hit_tokens == expected
    assert taker.counters.num_computed_positions - before == len(PROMPT) - expected + 3
    assert run(taker, [greedy(PROMPT, 4)]) == cold()  # and it is its own now
    assert taker.counters.num_hit_tokens == expected + 8 * B


@pytest.mark.parametrize(("num_known", "failed"), [(2, {}), (3, {}), (4, {"missing": 1})])
def test_what_the_router_did_not_know_of_is_no_failure_where_it_is_not_there(
    giver: tuple[Engine, PageServer], taker: Engine, num_known: int, failed: dict[str, int]
) -> None:
    prompt = [*PROMPT[: 3 * B], *random_prompt(4 * B, seed=7)]
    assert run(taker, [pulling(giver[1].address, num_known * B, prompt=prompt)]) == cold(prompt=prompt)
    assert taker.counters.num_loaded_tokens == {"peer": 3 * B}
    assert taker.counters.num_failed_loads == failed


def test_only_what_the_taker_lacks_is_pulled(giver: tuple[Engine, PageServer], taker: Engine) -> None:
    run(taker, [greedy(PROMPT[: 3 * B + 1], 1)])
    assert run(taker, [pulling(giver[1].address, 8 * B)]) == cold()
    assert taker.counters.num_loaded_tokens == {"peer": 5 * B}


def test_a_sibling_that_comes_along_without_a_giver_waits_for_what_is_pulled(
    giver: tuple[Engine, PageServer], taker: Engine
) -> None:
    """It is shorter, so it would come first; and a router that sent one with a giver expects the pages to be there."""
    sibling, before = PROMPT[: 8 * B + 1], taker.counters.num_computed_positions
    longer = [*PROMPT, *random_prompt(B, seed=3)]
    answers = run(taker, [pulling(giver[1].address, 8 * B, prompt=longer), greedy(sibling, 4)])
    assert answers == [*cold(prompt=longer), *cold(prompt=sibling)]
    assert taker.counters.num_loaded_tokens == {"peer": 8 * B}
    assert taker.counters.num_computed_positions - before == (3 + B) + 1 + 2 * 3


def test_what_is_to_be_pulled_is_no_queue(giver: tuple[Engine, PageServer], taker: Engine) -> None:
    """Else routers would take the replica for busy while the pages are on their way."""
    taker.add(pulling(giver[1].address, 8 * B))
    assert taker.scheduler.num_queued_prefill_tokens == len(PROMPT) - 8 * B


def test_behind_what_the_giver_has_evicted_everything_is_computed(
    giver: tuple[Engine, PageServer], taker: Engine
) -> None:
    engine, server = giver
    key = BlockHasher(SECRET, "tiny", B).keys(PROMPT)[2]
    page_id = engine.manager.pool.index.find(key)
    assert page_id is not None
    engine.manager.pool.index.drop_page(page_id)
    assert run(taker, [pulling(server.address, 8 * B)]) == cold()
    assert taker.counters.num_loaded_tokens == {"peer": 2 * B}
    assert taker.counters.num_failed_loads == {"missing": 1}


@pytest.mark.parametrize("gone", ["closed", "unknown", "other secret"])
def test_a_giver_that_cannot_be_asked_costs_no_answer(
    giver: tuple[Engine, PageServer], taker: Engine, gone: str
) -> None:
    address = giver[1].address
    if gone == "closed":
        giver[1].close()
    elif gone == "unknown":
        address = replace(address, replica_id="somebody else")
    else:
        taker.loader._transfer._secret = b"another one of16"  # type: ignore[union-attr]
    assert run(taker, [pulling(address, 8 * B)]) == cold()
    assert sum(taker.counters.num_failed_loads.values()) == 1
    assert not taker.counters.num_hit_tokens


def test_while_a_cluster_is_reset_nobody_gives_what_others_have_forgotten(
    giver: tuple[Engine, PageServer], taker: Engine
) -> None:
    """The taker was reset before the giver; the router still believes that the giver holds the prompt, and it does."""
    engine, server = giver
    source = engine.page_source
    assert source is not None
    source.hold_back(600.0)
    taker.reset_prefix_cache()
    assert run(taker, [pulling(server.address, 8 * B)]) == cold()
    assert taker.counters.num_failed_loads == {"missing": 1}
    assert not taker.counters.num_hit_tokens
    taker.reset_prefix_cache()
    source.give_again()
    run(taker, [pulling(server.address, 8 * B)])
    assert taker.counters.num_loaded_tokens == {"peer": 8 * B}
    source.hold_back(0.0)  # is over at once, as where nobody came to reset it
    taker.reset_prefix_cache()
    run(taker, [pulling(server.address, 8 * B)])
    assert taker.counters.num_loaded_tokens == {"peer": 16 * B}


def test_an_engine_that_may_not_pull_computes(giver: tuple[Engine, PageServer]) -> None:
    engine = tiny_engine()
    assert run(engine, [pulling(giver[1].address, 8 * B)]) == cold()
    assert not engine.counters.num_hit_tokens


def test_pages_are_given_from_the_hosts_memory_too(taker: Engine) -> None:
    engine = pulling_engine(num_blocks=12, host_kv_memory=1 << 20)
    for prompt in (PROMPT, random_prompt(11 * B + 3, seed=2)):
        run(engine, [greedy(prompt, 1)])
    assert engine.page_source is not None
    server = PageServer(SECRET, "giver", engine.page_source, "127.0.0.1")
    try:
        assert run(taker, [pulling(server.address, 8 * B)]) == cold()
        assert taker.counters.num_loaded_tokens == {"peer": 8 * B}
    finally:
        server.close()
        engine.loader.close()  # type: ignore[union-attr]


async def test_both_take_from_each_other_while_both_compute_and_evict() -> None:
    """Small pools, eight prompts with shared heads, real threads: every answer is the one it gets alone."""
    engines = [AsyncEngine(pulling_engine(num_blocks=24, max_num_seqs=4)) for _ in range(2)]
    servers = [
        PageServer(SECRET, str(number), engine.engine.page_source, "127.0.0.1")  # type: ignore[arg-type]
        for number, engine in enumerate(engines)
    ]
    heads = [random_prompt(6 * B, seed=seed) for seed in (1, 2)]
    prompts = [[*heads[seed % 2], *random_prompt(2 * B + 1, seed=10 + seed)] for seed in range(8)]
    expected = [cold(3, prompt)[0] for prompt in prompts]

    async def ask(number: int, prompt: list[int]) -> list[int]:
        request = pulling(servers[1 - number].address, len(prompt), 3, prompt)
        return [t async for chunks in engines[number].generate(request) for chunk in chunks for t in chunk.token_ids]

    try:
        for turn in range(6):
            answers = await asyncio.gather(*(ask((turn + at) % 2, prompt) for at, prompt in enumerate(prompts)))
            assert answers == expected
        for engine in engines:
            await eventually(lambda engine=engine: not engine.engine.has_work)
            engine.engine.manager.check_invariants()
            assert engine.engine.manager.pool.num_active == 0
        assert sum(engine.engine.counters.num_loaded_tokens["peer"] for engine in engines) > 0
    finally:
        for part in (*engines, *servers):
            part.close()
