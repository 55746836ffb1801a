"""In which order pages are handed out again: a chain is eaten from its end, or what is left of it cannot be hit."""

import hypothesis.strategies as st
from hypothesis import given

from cache.block_hasher import BlockHasher, BlockKey
from cache.block_pool import EvictedPage
from cache.kv_cache_manager import KVCacheManager

B = 2
HASHER = BlockHasher(bytes(16), "weights", B)
ONE_PAGE = st.sampled_from([(0, 0), (0, 1)])
PROMPTS = st.lists(ONE_PAGE, min_size=1, max_size=5).map(lambda pages: [token for page in pages for token in page])
STEPS = st.lists(st.tuples(PROMPTS, st.integers(0, 3)), min_size=4, max_size=40)


class Run:
    """Requests that come and go in a small pool; every page that is evicted is checked at that moment."""

    def __init__(self, num_pages: int):
        self.manager = KVCacheManager(num_pages, B)
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


@given(num_pages=st.integers(5, 12), steps=STEPS)
def test_no_page_is_evicted_before_those_that_follow_it(num_pages: int, steps: list[tuple[list[int], int]]) -> None:
    run = Run(num_pages)
    for number, (tokens, num_leaving) in enumerate(steps):
        run.serve(number, tokens, num_leaving)


def test_a_chain_is_evicted_from_its_end() -> None:
    run, chain = Run(4), [0, 0, 0, 1, 0, 0]
    run.serve(0, chain, 1)
    for number, num_left in enumerate((3, 2, 1, 0), start=1):  # the first takes the page that was never used
        run.serve(number, [number + 1] * B, 0)
        assert len(run.manager.match(HASHER.keys(chain), len(chain) + 1).page_ids) == num_left
    assert run.num_evicted == 3
