"""Looks into an engine's cache without computing or changing anything, for explanations."""

from collections.abc import Sequence

from cache.block_hasher import BlockHasher, ExtraKeys
from cache.kv_cache_manager import PrefixOverlap
from replica.engine.async_engine import AsyncEngine
from replica.engine.engine import Engine


async def cache_overlaps(
    engine: AsyncEngine, hasher: BlockHasher, prompts: Sequence[Sequence[int]], extra_keys: ExtraKeys
) -> list[PrefixOverlap]:
    """What of each prompt is cached in the name space of `extra_keys`, and in no other one (51). Raises EngineDead.

    Each prompt is looked up between two steps; it is hashed before, so that no step waits for that.
    """
    root = hasher.root(extra_keys)
    found: list[PrefixOverlap] = []
    for token_ids in prompts:
        keys = hasher.keys(token_ids, extra_keys)

        def look_up(engine: Engine, token_ids: Sequence[int] = token_ids, keys: list[bytes] = keys) -> PrefixOverlap:
            return engine.manager.overlap(keys, token_ids, root)

        found.append(await engine.call(look_up))
    return found
