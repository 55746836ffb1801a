"""Random mixtures of requests against a model of the cache that fits on a screen."""

from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache.block_hasher import BlockHasher, BlockKey
from cache.events import BlocksRemoved, BlocksStored
from cache.eviction import EVICTIONS
from cache.kv_cache_manager import KVCacheManager

B = 2
HASHER = BlockHasher(bytes(16), "weights", B)
ROOT = HASHER.root()


def num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class ManagerMachine(RuleBasedStateMachine):
    """The model: what each page's slots hold, written when a request computes and moved by page copies.

    A hit is right when the slots it points at hold exactly the tokens of the prompt's beginning.
    """

    @initialize(
        num_pages=st.integers(2, 8), blocks_per_page=st.sampled_from([1, 2, 3]), eviction=st.sampled_from(EVICTIONS)
    )
    def start(self, num_pages: int, blocks_per_page: int, eviction: str) -> None:
        self.manager = KVCacheManager(num_pages, B, blocks_per_page, keep_token_ids=True, eviction=eviction)
        self.texts: dict[BlockKey, tuple[int, ...]] = {}
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.replayed: set[BlockKey] = set()
        self.num_admitted = 0

    def _where(self, request_id: str, position: int) -> tuple[int, int]:
        size = self.manager.page_size
        return self.manager.block_table(request_id)[position // size], position % size

    def _do_copies(self) -> None:
        for copy in self.manager.take_copies():
            for offset in range(copy.num_tokens):
                self.slots[copy.target, offset] = self.slots[copy.source, offset]

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def admit(self, tokens: list[int]) -> None:
        match = self.manager.match(HASHER.keys(tokens), len(tokens))
        assert match.num_tokens < len(tokens)
        request_id = f"r{self.num_admitted}"
        needed = self.manager.num_new_pages(match, len(tokens))
        fits = needed <= self.manager.pool.num_free
        assert self.manager.admit(request_id, match, len(tokens)) == fits
        if not fits:
            return
        self._do_copies()
        self.num_admitted += 1
        self.tokens[request_id], self.computed[request_id] = list(tokens), match.num_tokens
        for position in range(match.num_tokens):
            assert self.slots[self._where(request_id, position)] == tuple(tokens[: position + 1])

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), num_tokens=st.integers(1, 5))
    def compute(self, data: st.DataObject, num_tokens: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.tokens)))
        tokens, start = self.tokens[request_id], self.computed[request_id]
        end = min(len(tokens), start + num_tokens)
        for position in range(start, end):
            self.slots[self._where(request_id, position)] = tuple(tokens[: position + 1])
        self.computed[request_id] = end
        keys = HASHER.keys(tokens)
        self.manager.commit(request_id, keys, end, tokens, ROOT)
        self.texts |= {key: tuple(tokens[: (position + 1) * B]) for position, key in enumerate(keys)}

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data: st.DataObject, token: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.tokens)))
        if self.manager.grow(request_id, len(self.tokens[request_id]) + 1):
            self.tokens[request_id].append(token)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.tokens)))
        self.manager.release(request_id)
        del self.tokens[request_id], self.computed[request_id]

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def overlap(self, tokens: list[int]) -> None:
        found = self.manager.overlap(HASHER.keys(tokens), tokens, ROOT)
        reusable = found.num_reusable_tokens
        assert reusable == self.manager.match(HASHER.keys(tokens), len(tokens)).num_tokens
        cached = [self.texts[key] for key in self.manager.cached_keys()]
        following = [
            text for text in cached if len(text) == reusable + B and text[:reusable] == tuple(tokens[:reusable])
        ]
        assert found.num_equal_tokens == max([reusable, *(num_equal(text, tokens) for text in following)])

    @rule()
    def reset(self) -> None:
        self.manager.reset()
        assert not self.manager.cached_keys()

    @invariant()
    def bookkeeping_agrees(self) -> None:
        self.manager.check_invariants()

    @invariant()
    def events_replay_to_the_cached_keys(self) -> None:
        for event in self.manager.take_events():
            if isinstance(event, BlocksStored):
                assert self.replayed.isdisjoint(event.keys)
                self.replayed.update(event.keys)
            elif isinstance(event, BlocksRemoved):
                assert self.replayed.issuperset(event.keys)
                self.replayed.difference_update(event.keys)
            else:
                self.replayed.clear()
        assert self.replayed == self.manager.cached_keys()

    def teardown(self) -> None:
        for request_id in list(getattr(self, "tokens", ())):
            self.manager.release(request_id)
        if hasattr(self, "manager"):
            assert self.manager.pool.num_active == 0
            self.manager.check_invariants()


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(max_examples=150, stateful_step_count=40)
