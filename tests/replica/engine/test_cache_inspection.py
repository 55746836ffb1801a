"""Looking into a live engine's cache: what it says is what the next request finds, and nothing changes."""

from collections.abc import Iterator

import pytest

from cache.block_hasher import BlockHasher, ExtraKeys
from cache.kv_cache_manager import PrefixOverlap
from replica.engine.async_engine import AsyncEngine
from replica.engine.cache_inspection import cache_overlaps
from replica.errors import EngineDead
from tests.replica.tiny_models import BLOCK_SIZE as B
from tests.replica.tiny_models import greedy, random_prompt, tiny_engine

HASHER = BlockHasher(b"0123456789abcdef", "tiny", B)
"""As `tiny_engine` has it."""
NOBODY = ExtraKeys()


@pytest.fixture
def engine() -> Iterator[AsyncEngine]:
    engine = AsyncEngine(tiny_engine())
    yield engine
    engine.close()


async def answer(engine: AsyncEngine, prompt: list[int], max_tokens: int) -> tuple[list[int], int]:
    """Tokens of the answer, and how many of the prompt came from the cache."""
    chunks = [chunk async for items in engine.generate(greedy(prompt, max_tokens)) for chunk in items]
    assert chunks[-1].usage is not None
    return [token for chunk in chunks for token in chunk.token_ids], chunks[-1].usage.cached_tokens


async def test_the_page_example_and_the_answer_that_was_computed(engine: AsyncEngine) -> None:
    prompt = random_prompt(3 * B, seed=1)
    tokens, _ = await answer(engine, prompt, 2 * B + 1)  # the last token is not computed any more
    other = [*prompt[: 2 * B - 1], (prompt[2 * B - 1] + 1) % 50, *prompt[2 * B :]]
    longer = [*prompt, *tokens[:B], (tokens[B] + 1) % 50]
    overlaps = await cache_overlaps(engine, HASHER, [other, longer, [*longer[:-1], tokens[B]]], NOBODY)
    assert overlaps == [
        PrefixOverlap(B, 2 * B - 1), PrefixOverlap(4 * B, 4 * B), PrefixOverlap(4 * B, 4 * B + 1),
    ]  # fmt: skip
    assert (await answer(engine, other, 1))[1] == B


async def test_looking_changes_nothing(engine: AsyncEngine) -> None:
    prompt = random_prompt(5 * B + 1, seed=2)
    await answer(engine, prompt, 1)
    inside = engine.engine
    before = (inside.counters.num_steps, inside.manager.pool.num_active, inside.manager.cached_keys())
    for _ in range(3):
        assert await cache_overlaps(engine, HASHER, [prompt], NOBODY) == [PrefixOverlap(5 * B, 5 * B)]
    assert before == (inside.counters.num_steps, inside.manager.pool.num_active, inside.manager.cached_keys())
    assert (await answer(engine, prompt, 1))[1] == 5 * B


async def test_51_another_name_space_is_empty(engine: AsyncEngine) -> None:
    prompt = random_prompt(4 * B, seed=3)
    await answer(engine, prompt, 1)
    assert await cache_overlaps(engine, HASHER, [prompt], ExtraKeys(cache_salt="other")) == [PrefixOverlap()]


async def test_a_dead_engine_says_so(engine: AsyncEngine) -> None:
    engine.close()
    with pytest.raises(EngineDead):
        await cache_overlaps(engine, HASHER, [[1, 2, 3]], NOBODY)
