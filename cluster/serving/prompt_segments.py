"""A prompt page by page: which tokens can be reused, which are only equal, and which are different."""

from dataclasses import dataclass
from typing import Literal

from cache.kv_cache_manager import PrefixOverlap

State = Literal["reusable", "equal", "different"]


@dataclass(frozen=True, slots=True)
class PromptSegment:
    """Neighbouring tokens of one state, and the blocks that they lie in, wholly or in part.

    reusable: whole blocks that an engine takes from its cache. equal: tokens that lie in the cache, but in a block that
    is not equal to its end, or that holds the prompt's last token; they are computed. different: all behind them.
    """

    state: State
    first_token: int
    num_tokens: int
    first_block: int
    num_blocks: int


def prompt_segments(num_tokens: int, block_size: int, overlap: PrefixOverlap) -> list[PromptSegment]:
    """The whole prompt in at most three runs; states of no token are left out."""
    ends: tuple[tuple[State, int], ...] = (
        ("reusable", overlap.num_reusable_tokens),
        ("equal", overlap.num_equal_tokens),
        ("different", num_tokens),
    )
    runs, first = [], 0
    for state, end in ends:
        if end > first:
            block = first // block_size
            runs.append(PromptSegment(state, first, end - first, block, (end - 1) // block_size - block + 1))
            first = end
    return runs
