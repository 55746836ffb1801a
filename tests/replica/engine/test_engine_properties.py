"""Random lives of requests in one engine: whatever the mixture, and wherever each block of a prompt comes from (the
pool, the host's memory, a disk, another engine), each answer is the one it gets alone, cold."""

import shutil
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache.block_hasher import ExtraKeys
from cache.events import BlocksRemoved, BlocksStored
from replica.errors import RequestRefused
from replica.messages import FinishReason, GenerateRequest, PageAddress, Pull
from replica.sampling_params import SamplingParams
from tests.cache.tiers.disk_pages import bytes_taken
from tests.replica.engine.four_places import (
    EOS,
    SHARED,
    WrittenFolder,
    alone,
    attach_loader,
    attach_tiers,
    expected_tokens,
    giver_of,
    num_equal,
)
from tests.replica.loading.scripted_loader import ScriptedLoader
from tests.replica.tiny_models import BLOCK_SIZE, greedy, random_prompt, run, tiny_engine

SALTS = st.sampled_from([None, None, None, "other"])
TAILS = st.sampled_from([[], [], [1], [2, 2, 2, 2, 2]])
GIVER = PageAddress("giver", "127.0.0.1", 1)


class EngineMachine(RuleBasedStateMachine):
    """texts: whose, of which name space, and what: all that was ever asked and answered, here or at the giver."""

    folder: WrittenFolder | None = None
    loader: ScriptedLoader | None = None

    @initialize(
        num_blocks=st.sampled_from([16, 20, 28, 40]),
        blocks_per_page=st.sampled_from([1, 1, 2, 4]),
        budget=st.integers(4, 40),
        caching=st.sampled_from([True] * 7 + [False]),
        watermark=st.sampled_from([0.0, 0.1]),
        num_host_pages=st.sampled_from([0, 2, 10, 60, 60]),
        num_disk_pages=st.sampled_from([0, 2, 40]),
        has_peer=st.booleans(),
    )
    def start(
        self,
        num_blocks: int,
        blocks_per_page: int,
        budget: int,
        caching: bool,
        watermark: float,
        num_host_pages: int,
        num_disk_pages: int,
        has_peer: bool,
    ) -> None:
        self.engine = tiny_engine(
            num_blocks=num_blocks,
            page_size=blocks_per_page * BLOCK_SIZE,
            max_num_batched_tokens=budget,
            max_num_seqs=min(4, budget),
            prefix_caching=caching,
            watermark=watermark,
            eos_token_ids=[EOS],
        )
        self.now, self.giver = 0.0, giver_of(blocks_per_page)
        self.giver.reset_prefix_cache()
        if caching:
            self.folder = attach_tiers(self.engine, num_host_pages, num_disk_pages)
            self.loader = attach_loader(self.engine, self.giver if has_peer else None)
            self.engine._loads._clock = lambda: self.now
        self.caching = caching
        self.engine.books.observer.kv_events = self.replay  # type: ignore[method-assign]
        self.replayed: set[bytes] = set()
        self.live: dict[str, GenerateRequest] = {}
        self.tokens: dict[str, list[int]] = {}
        self.texts: list[tuple[str, str | None, tuple[int, ...]]] = []
        self.stale: dict[str, tuple[int, list[int]]] = {}
        self.num_added = 0
        for shared in [*SHARED[::2], *SHARED[1::2]] * 2:  # so that pages lie everywhere when the random life begins
            self.add(shared, [], 1, 1, (), None, knows=len(shared) > 20)
            self.everything_comes()

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
        tail=TAILS,
        max_tokens=st.integers(1, 24),
        copies=st.sampled_from([1, 1, 1, 2, 3]),
        stop=st.sampled_from([(), (), (40, 41, 42, 43)]),
        salt=SALTS,
        pulled=st.sampled_from([None, None, 7, 20, 1000]),
        knows=st.booleans(),
    )
    def add(
        self,
        shared: list[int],
        tail: list[int],
        max_tokens: int,
        copies: int,
        stop: tuple[int, ...],
        salt: str | None,
        pulled: int | None = None,
        knows: bool = False,
    ) -> None:
        """pulled: what a router claims that the giver holds, rightly or not. knows: whether it has just computed it."""
        if knows:
            self.giver_computes(shared, tail, salt)
        for _ in range(copies):
            self.num_added += 1
            sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, stop_token_ids=stop)
            extra = ExtraKeys(cache_salt=salt)
            request = GenerateRequest(f"r{self.num_added}", shared + tail, sampling, 0.0, extra)
            if pulled is not None:
                request = replace(request, pull=Pull(GIVER, pulled))
            try:
                self.engine.add(request)
            except RequestRefused as refusal:
                assert len(request.token_ids) + max_tokens > self.engine.longest_request_tokens, refusal
                continue
            self.live[request.request_id], self.tokens[request.request_id] = request, []
            self.texts.append((request.request_id, salt, (*request.token_ids, *alone(tuple(request.token_ids)))))

    def giver_computes(self, shared: list[int], tail: list[int], salt: str | None) -> None:
        request = replace(greedy(shared + tail, 4), extra_keys=ExtraKeys(cache_salt=salt))
        run(self.giver, [request])
        self.texts.append(("giver", salt, (*shared, *tail, *alone((*shared, *tail)))))

    @rule(seeds=st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True))
    def others_come(self, seeds: list[int]) -> None:
        """Prompts that nobody asks again, and what lay in the pool is thrown out."""
        for seed in seeds:
            prompt = random_prompt(min(40, self.engine.longest_request_tokens - 2), seed=100 + seed)
            self.add(prompt, [], 1, 1, (), None)
        self.everything_comes()

    @rule()
    def giver_forgets(self) -> None:
        self.giver.reset_prefix_cache()

    @precondition(lambda self: self.folder is not None)
    @rule(data=st.data(), how=st.sampled_from(["bytes", "cut", "gone"]))
    def disk_spoils(self, data: st.DataObject, how: str) -> None:
        files = sorted(self.folder.path.rglob("*.page"))
        if not files:
            return
        file = data.draw(st.sampled_from(files))
        content = file.read_bytes()
        if how == "gone":
            file.unlink()
        else:
            file.write_bytes(content[: len(content) // 2] + (b"\xff" * 99 if how == "bytes" else b""))

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
    @rule(
        data=st.data(),
        what=st.sampled_from(["arrive", "arrive", "whole", "die", "garbage", "late", "corrupt", "reorder", "truncate"]),
    )
    def pages_come(self, data: st.DataObject, what: str) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.loader.loads)))
        if what in ("arrive", "whole"):
            self.loader.arrive(request_id, 1 if what == "arrive" else 100)
        elif what in ("corrupt", "reorder", "truncate"):
            self.loader.arrive(request_id, fault=what)
        elif what == "late":
            self.now += 60.0
        else:
            self.loader.fail(request_id, garbage=what == "garbage")

    @rule()
    def everything_comes(self) -> None:
        if self.loader is not None:
            self.loader.arrive_all()
        if self.folder is not None:
            self.folder.disk.work()
        if self.live:
            self.step(20)

    @rule()
    def reset_cache(self) -> None:
        """What was on its way to the disk, or is on its way from anywhere, is not found afterwards either."""
        self.engine.reset_prefix_cache()
        assert self.engine.manager.cached_keys() == set()
        if self.folder is not None:
            self.folder.disk.work()
        if self.loader is not None:
            self.loader.arrive_all()
        self.engine.publish_events()
        assert self.engine.manager.cached_keys() == set()
        scheduler = self.engine.scheduler
        self.stale = {
            request.id: (request.num_preemptions, list(self.engine.manager.block_table(request.id)))
            for request in (*scheduler.running, *scheduler.loading)
        }

    @precondition(lambda self: self.live)
    @rule(num_steps=st.sampled_from([1, 2, 5, 12, 40]))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            for chunk in self.engine.step():
                self.tokens[chunk.request_id] += chunk.token_ids
                if chunk.finish_reason is not None:
                    self.check_hits(self.live[chunk.request_id], chunk.usage.cached_tokens)
                    self.finished(chunk.request_id, chunk.finish_reason)
            self.engine.manager.check_invariants()
            self.check_stale()

    def check_stale(self) -> None:
        """Pages that a request had when the cache was reset are never offered, whatever came into them since."""
        for request in (*self.engine.scheduler.running, *self.engine.scheduler.loading):
            num_preemptions, page_ids = self.stale.get(request.id, (-1, []))
            if num_preemptions == request.num_preemptions:
                assert not any(self.engine.manager.pool.index.keys_of(page_id) for page_id in page_ids)

    def check_hits(self, request: GenerateRequest, num_cached: int) -> None:
        """Nothing is served but what somebody else of its own name space has computed."""
        prompt = tuple(request.token_ids)
        others = [
            num_equal(prompt, text)
            for owner, salt, text in self.texts
            if owner != request.request_id and salt == request.extra_keys.cache_salt
        ]
        assert num_cached <= max(others, default=0)

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

    @invariant()
    def tiers_keep_their_bounds(self) -> None:
        tiers = self.engine.manager.tiers if hasattr(self, "engine") else None
        if tiers is None:
            return
        if tiers.host is not None:
            assert tiers.host.num_bytes <= tiers.host.max_bytes
            tiers.host.check_invariants()
        if self.folder is not None:
            assert bytes_taken(self.folder.path / "0") <= self.folder.max_bytes
            assert self.folder.disk.num_bytes <= self.folder.max_bytes

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        try:
            self.run_to_the_end()
        finally:
            if self.folder is not None:
                self.folder.disk.close()
                shutil.rmtree(self.folder.path)

    def run_to_the_end(self) -> None:
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
TestEngineMachine.settings = settings(max_examples=60, stateful_step_count=40)
