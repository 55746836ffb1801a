"""Random lives of requests in one engine: whatever the mixture, each answer is the one it gets alone, cold."""

from functools import cache

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache.events import BlocksRemoved, BlocksStored
from replica.errors import RequestRefused
from replica.messages import FinishReason, GenerateRequest
from replica.sampling_params import SamplingParams
from tests.replica.loading.scripted_loader import ScriptedLoader
from tests.replica.tiny_models import BLOCK_SIZE, greedy, random_prompt, run, tiny_engine

EOS = 7
BLOCK_BYTES = tiny_engine()._runner._pages.page_bytes  # type: ignore[attr-defined]
SHARED = [random_prompt(length, seed=length) for length in (3, 8, 9, 17, 24)]


@cache
def alone(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """24 greedy tokens without cache and company; every shorter answer is a beginning of it."""
    return tuple(run(tiny_engine(prefix_caching=False, num_blocks=64), [greedy(prompt, 24)])[0])


def expected_tokens(request: GenerateRequest) -> tuple[int, ...]:
    answer = alone(tuple(request.token_ids))[: request.sampling.max_tokens]
    for position, token in enumerate(answer):
        if token == EOS or token in request.sampling.stop_token_ids:
            return answer[: position + 1]
    return answer


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(14, 40),
        blocks_per_page=st.sampled_from([1, 1, 2, 4]),
        budget=st.integers(4, 40),
        caching=st.sampled_from([True, True, True, False]),
        watermark=st.sampled_from([0.0, 0.1]),
        num_host_pages=st.sampled_from([0, 2, 10, 60]),
    )
    def start(
        self, num_blocks: int, blocks_per_page: int, budget: int, caching: bool, watermark: float, num_host_pages: int
    ) -> None:
        self.engine = tiny_engine(
            num_blocks=num_blocks,
            page_size=blocks_per_page * BLOCK_SIZE,
            max_num_batched_tokens=budget,
            max_num_seqs=min(4, budget),
            prefix_caching=caching,
            watermark=watermark,
            eos_token_ids=[EOS],
            host_kv_memory=num_host_pages * blocks_per_page * BLOCK_BYTES,
        )
        self.now, self.loader = 0.0, None
        if self.engine.loader is not None:
            found = self.engine.loader
            self.loader = ScriptedLoader(found._memory, found._tiers)  # type: ignore[attr-defined]
            self.engine._loads._loader = self.loader
            self.engine._loads._clock = lambda: self.now
        self.caching = caching
        self.engine.books.observer.kv_events = self.replay  # type: ignore[method-assign]
        self.replayed: set[bytes] = set()
        self.live: dict[str, GenerateRequest] = {}
        self.tokens: dict[str, list[int]] = {}
        self.num_added = 0

    def replay(self, events: list) -> None:
        for event in events:
            if isinstance(event, BlocksStored):
                self.replayed.update(event.keys)
            elif isinstance(event, BlocksRemoved):
                self.replayed.difference_update(event.keys)
            else:
                self.replayed.clear()

    @rule(
        shared=st.sampled_from(SHARED),
        tail=st.lists(st.integers(0, 3), max_size=6),
        max_tokens=st.integers(1, 24),
        copies=st.sampled_from([1, 1, 1, 2, 3]),
        stop=st.sampled_from([(), (), (40, 41, 42, 43)]),
    )
    def add(self, shared: list[int], tail: list[int], max_tokens: int, copies: int, stop: tuple[int, ...]) -> None:
        for _ in range(copies):
            self.num_added += 1
            sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, stop_token_ids=stop)
            request = GenerateRequest(f"r{self.num_added}", shared + tail, sampling, 0.0)
            try:
                self.engine.add(request)
            except RequestRefused as refusal:
                assert len(request.token_ids) + max_tokens > self.engine.longest_request_tokens, refusal
                continue
            self.live[request.request_id], self.tokens[request.request_id] = request, []

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        chunk = self.engine.abort(request_id)
        assert chunk is not None
        assert chunk.finish_reason is FinishReason.ABORT
        self.check_beginning(request_id)
        del self.live[request_id]

    @precondition(lambda self: self.loader is not None and self.loader.loads)
    @rule(data=st.data(), what=st.sampled_from(["arrive", "arrive", "whole", "die", "garbage", "late"]))
    def pages_come(self, data: st.DataObject, what: str) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.loader.loads)))
        if what in ("arrive", "whole"):
            self.loader.arrive(request_id, 1 if what == "arrive" else 100)
        elif what == "late":
            self.now += 60.0
        else:
            self.loader.fail(request_id, garbage=what == "garbage")

    @rule()
    def reset_cache(self) -> None:
        self.engine.reset_prefix_cache()

    @precondition(lambda self: self.live)
    @rule(num_steps=st.integers(1, 12))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            for chunk in self.engine.step():
                self.tokens[chunk.request_id] += chunk.token_ids
                if chunk.finish_reason is not None:
                    self.finished(chunk.request_id, chunk.finish_reason)
            self.engine.manager.check_invariants()

    def finished(self, request_id: str, reason: FinishReason) -> None:
        request = self.live.pop(request_id)
        expected = expected_tokens(request)
        assert tuple(self.tokens[request_id]) == expected
        ended_early = expected[-1] == EOS or expected[-1] in request.sampling.stop_token_ids
        assert reason is (FinishReason.STOP if ended_early else FinishReason.LENGTH)

    def check_beginning(self, request_id: str) -> None:
        so_far = tuple(self.tokens[request_id])
        assert alone(tuple(self.live[request_id].token_ids))[: len(so_far)] == so_far

    @invariant()
    def events_tell_what_can_be_hit(self) -> None:
        if hasattr(self, "engine"):
            self.engine.publish_events()
            assert self.replayed == self.engine.manager.cached_keys()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        num_steps = 0
        while self.engine.has_work:
            if self.loader is not None:
                self.loader.arrive_all()
            self.step(1)
            num_steps += 1
            assert num_steps < 3000, "the engine makes no progress"
        assert not self.live
        assert self.engine.manager.pool.num_active == 0
        self.engine.manager.check_invariants()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=60, stateful_step_count=30)
