"""In which order pages are handed out again: a chain is eaten from its end, or what is left of it cannot be hit."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from cache.block_hasher import BlockHasher, BlockKey
from cache.block_pool import EvictedPage
from cache.eviction import EVICTIONS
from cache.kv_cache_manager import KVCacheManager

B = 2
HASHER = BlockHasher(bytes(16), "weights", B)
ONE_PAGE = st.sampled_from([(0, 0), (0, 1)])
PROMPTS = st.lists(ONE_PAGE, min_size=1, max_size=5).map(lambda pages: [token for page in pages for token in page])
STEPS = st.lists(st.tuples(PROMPTS, st.integers(0, 3)), min_size=4, max_size=40)


class Run:
    """Requests that come and go in a small pool; every page that is evicted is checked at that moment."""

    def __init__(self, num_pages: int, eviction: str):
        self.manager = KVCacheManager(num_pages, B, eviction=eviction)
        self.parents: dict[BlockKey, BlockKey] = {}
        self.running: list[str] = []
        self.num_evicted = 0
        take = self.manager.pool.take

        def checked_take(num_pages: int) -> tuple[list[int], list[EvictedPage]]:
            """One page at a time, as the pool does it, so that what is still cached is known for each."""
            taken: list[int] = []
            evicted: list[EvictedPage] = []
            for _ in range(num_pages):
                pages, dropped = take(1)
                for page in dropped:
                    self._check(page.gone)
                taken += pages
                evicted += dropped
            return taken, evicted

        self.manager.pool.take = checked_take  # type: ignore[method-assign]

    def _check(self, gone: tuple[BlockKey, ...]) -> None:
        self.num_evicted += 1
        orphans = [key for key in self.manager.cached_keys() if self.parents.get(key) in gone]
        assert not orphans, "a page was evicted while one that follows it in a chain could still be hit"

    def serve(self, number: int, tokens: list[int], num_leaving: int) -> None:
        keys = HASHER.keys(tokens)
        self.parents.update(zip(keys[1:], keys, strict=False))
        match = self.manager.match(keys, len(tokens))
        if self.manager.admit(f"r{number}", match, len(tokens)):
            self.manager.commit(f"r{number}", keys, len(tokens))
            self.running.append(f"r{number}")
        for _ in range(min(num_leaving, len(self.running))):
            self.manager.release(self.running.pop(0))
        self.manager.check_invariants()


@pytest.mark.parametrize("eviction", EVICTIONS)
@given(num_pages=st.integers(5, 12), steps=STEPS)
def test_no_page_is_evicted_before_those_that_follow_it(
    eviction: str, num_pages: int, steps: list[tuple[list[int], int]]
) -> None:
    run = Run(num_pages, eviction)
    for number, (tokens, num_leaving) in enumerate(steps):
        run.serve(number, tokens, num_leaving)


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_chain_is_evicted_from_its_end(eviction: str) -> None:
    run, chain = Run(4, eviction), [0, 0, 0, 1, 0, 0]
    run.serve(0, chain, 1)
    for number, num_left in enumerate((3, 2, 1, 0), start=1):  # the first takes the page that was never used
        run.serve(number, [number + 1] * B, 0)
        assert len(run.manager.match(HASHER.keys(chain), len(chain) + 1).page_ids) == num_left
    assert run.num_evicted == 3


def hits(run: Run, tokens: list[int]) -> int:
    return len(run.manager.match(HASHER.keys(tokens), len(tokens) + 1).page_ids)


def come_back(run: Run, shared: list[int]) -> int:
    """Prompts with a shared beginning, which the prompts between them push out. Returns how many requests that were."""
    number = 0
    for _ in range(4):
        for tail in (2, 3):
            run.serve(number, [*shared, tail, number], 1)
            number += 1
        for _ in range(10):
            run.serve(number, [9, number, 9, number], 1)
            number += 1
    return number


@pytest.mark.parametrize("eviction, num_kept", [("lru", 0), ("adaptive", 2)])
def test_adaptive_spares_what_comes_back_while_prompts_pass_that_nobody_repeats(eviction: str, num_kept: int) -> None:
    run = Run(8, eviction)
    come_back(run, [0, 0, 0, 1])
    assert hits(run, [0, 0, 0, 1]) == num_kept


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_after_a_reset_no_page_is_spared_that_nothing_can_hit(eviction: str) -> None:
    run = Run(8, eviction)
    first = come_back(run, [0, 0, 0, 1])
    run.manager.reset()
    for number in range(first, first + 8):
        run.serve(number, [7, number], 1)
    assert all(hits(run, [7, number]) for number in range(first, first + 8))


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="eviction must be one of lru, adaptive, got 'fifo'"):
        Run(4, "fifo")
