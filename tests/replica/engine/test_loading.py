"""Requests whose pages come from a colder tier: others run on, what comes is used, what does not come is computed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from replica.engine.engine import Engine
from replica.messages import FinishReason, GenerateRequest
from replica.request import RequestState
from replica.sampling_params import SamplingParams
from tests.replica.loading.scripted_loader import ScriptedLoader
from tests.replica.tiny_models import BLOCK_SIZE, greedy, random_prompt, run, tiny_engine
from tests.waiting import wait_until

B = BLOCK_SIZE
PROMPT = random_prompt(8 * B + 3, seed=1)
OTHER = random_prompt(11 * B + 3, seed=2)
PAGE_BYTES = tiny_engine()._runner._pages.page_bytes  # type: ignore[attr-defined]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(clock: Clock) -> Iterator[Engine]:
    """12 blocks in the pool, 40 in the host's memory, into which PROMPT's blocks were evicted by OTHER."""
    found = tiny_engine(num_blocks=12, host_kv_memory=40 * PAGE_BYTES, max_num_batched_tokens=64)
    real = found.loader
    assert real is not None
    found._loads._loader = ScriptedLoader(real._memory, real._tiers)  # type: ignore[attr-defined]
    found._loads._clock = clock
    run(found, [greedy(PROMPT, 1)])
    run(found, [greedy(OTHER, 1)])
    yield found
    real.close()


@pytest.fixture
def loader(engine: Engine) -> ScriptedLoader:
    assert isinstance(engine._loads._loader, ScriptedLoader)
    return engine._loads._loader


def cold(max_tokens: int) -> list[int]:
    return run(tiny_engine(prefix_caching=False), [greedy(PROMPT, max_tokens)])[0]


def finish(engine: Engine, request_id: str) -> tuple[list[int], int]:
    """Its tokens, and how many of its prompt were cached."""
    tokens: list[int] = []
    while engine.has_work:
        for chunk in engine.step():
            if chunk.request_id == request_id:
                tokens += chunk.token_ids
                if chunk.usage is not None:
                    cached = chunk.usage.cached_tokens
        engine.manager.check_invariants()
    return tokens, cached


def test_evicted_pages_come_back_and_nothing_of_them_is_computed(engine: Engine, loader: ScriptedLoader) -> None:
    before = engine.counters.num_computed_positions
    engine.add(greedy(PROMPT, 4, "a"))
    assert engine.step() == []
    assert loader.loads["a"].page_ids == engine.manager.block_table("a")[:8]
    loader.arrive_all()
    assert finish(engine, "a") == (cold(4), 8 * B)
    assert engine.counters.num_computed_positions - before == 3 + 3
    assert engine.counters.num_loaded_tokens == {"host": 8 * B}


def test_others_run_on_while_pages_come(engine: Engine, loader: ScriptedLoader) -> None:
    engine.add(greedy(PROMPT, 4, "a"))
    short = random_prompt(5, seed=9)
    engine.add(greedy(short, 6, "b"))
    tokens = [
        token for _ in range(6) for chunk in engine.step() if chunk.request_id == "b" for token in chunk.token_ids
    ]
    assert tokens == run(tiny_engine(), [greedy(short, 6)])[0]
    assert [request.id for request in engine.scheduler.loading] == ["a"]
    assert engine.step() == []
    assert not engine.can_step  # nothing to do but to wait: the engine's thread sleeps
    loader.arrive_all()
    assert engine.can_step
    assert finish(engine, "a") == (cold(4), 8 * B)


@pytest.mark.parametrize("num_pages", [0, 1, 7])
def test_what_did_not_come_is_computed(engine: Engine, loader: ScriptedLoader, num_pages: int) -> None:
    engine.add(greedy(PROMPT, 4, "a"))
    engine.step()
    loader.arrive("a", num_pages)
    loader.fail("a", garbage=True)
    assert finish(engine, "a") == (cold(4), num_pages * B)
    assert engine.counters.num_failed_loads == {"died": 1}


def test_a_load_may_take_as_long_as_computing_would(
    engine: Engine, loader: ScriptedLoader, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replica.engine.loads.LEAST_SECONDS", 0.1)
    engine.speed.prefill_tokens_per_second = 4 * B  # 8 blocks are 2 seconds
    engine.add(greedy(PROMPT, 4, "a"))
    engine.step()
    loader.arrive("a", 3)
    clock.now += 1.9
    assert engine.step() == []
    assert engine.scheduler.loading
    assert engine.next_deadline == pytest.approx(102.0)
    clock.now += 0.2
    assert engine.can_step
    assert finish(engine, "a") == (cold(4), 3 * B)
    assert engine.counters.num_failed_loads == {"late": 1}


@pytest.mark.parametrize("end", ["abort", "deadline"])
def test_a_request_that_ends_while_it_loads_gives_its_pages_back(
    engine: Engine, loader: ScriptedLoader, end: str
) -> None:
    engine.add(greedy(PROMPT, 4, "a"))
    engine.step()
    loader.arrive("a", 2)
    chunk = engine.abort("a") if end == "abort" else engine.abort("a", FinishReason.TIMEOUT)
    assert chunk is not None
    assert chunk.usage is not None
    assert chunk.usage.cached_tokens == 0
    assert not loader.loads
    assert engine.manager.pool.num_active == 0
    engine.manager.check_invariants()


def test_who_waits_for_the_pages_of_a_load_that_ends_runs_at_once(engine: Engine, loader: ScriptedLoader) -> None:
    """Nothing else would wake the engine's thread: an abort is no step, and other loads may be far from late."""
    engine.add(greedy(PROMPT, 4, "a"))
    engine.add(greedy(random_prompt(6 * B, seed=12), 2, "waits"))
    engine.step()
    assert list(loader.loads) == ["a"]
    assert not engine.can_step
    engine.abort("a")
    assert engine.can_step
    assert len(finish(engine, "waits")[0]) == 2


def test_who_runs_is_not_thrown_out_for_who_still_loads(engine: Engine, loader: ScriptedLoader) -> None:
    """The pool gets full while the younger one's pages are on their way: it has computed nothing, so it goes."""
    old = random_prompt(B, seed=77)
    engine.add(greedy(old, 6 * B, "old"))
    engine.step()
    engine.add(greedy(PROMPT, 4, "young"))
    engine.step()
    assert list(loader.loads) == ["young"]
    loader.arrive("young", 2)
    while not engine.scheduler.num_preemptions:
        engine.step()
    assert [request.id for request in engine.scheduler.running] == ["old"]
    assert not loader.loads
    tokens: dict[str, list[int]] = {"old": [], "young": []}
    while engine.has_work:
        loader.arrive_all()
        for chunk in engine.step():
            tokens[chunk.request_id] += chunk.token_ids
        engine.manager.check_invariants()
    assert tokens["young"] == cold(4)
    assert engine.scheduler.num_recomputed_tokens == 0


@pytest.mark.parametrize("late", ["a", "waits"])
def test_a_deadline_holds_while_pages_are_on_their_way(
    engine: Engine, loader: ScriptedLoader, clock: Clock, late: str
) -> None:
    """Of who loads, and of who waits; the load itself may take longer."""
    engine._clock, engine.speed.prefill_tokens_per_second = clock, 1.0
    engine.add(replace(greedy(PROMPT, 4, "a"), deadline_seconds=103.0 if late == "a" else None))
    waiting = greedy(random_prompt(6 * B, seed=12), 2, "waits")
    engine.add(replace(waiting, deadline_seconds=103.0 if late == "waits" else None))
    engine.step()
    assert engine.next_deadline == 103.0
    clock.now = 102.9
    assert not engine.can_step
    clock.now = 103.0
    assert engine.can_step
    (ended,) = [chunk for chunk in engine.step() if chunk.finish_reason is not None]
    assert (ended.request_id, ended.finish_reason) == (late, FinishReason.TIMEOUT)
    assert list(loader.loads) == ([] if late == "a" else ["a"])


def test_siblings_wait_for_one_load(engine: Engine, loader: ScriptedLoader) -> None:
    for name in ("a", "b", "c"):
        engine.add(greedy(PROMPT, 2, name))
    engine.step()
    assert list(loader.loads) == ["a"]
    assert [request.state for request in engine.scheduler.waiting] == [RequestState.WAITING] * 2
    loader.arrive_all()
    while engine.has_work:
        engine.step()
        loader.arrive_all()
    assert engine.counters.num_loaded_tokens == {"host": 8 * B}


def test_a_reset_empties_the_tier_and_what_is_loaded_is_not_found_again(engine: Engine, loader: ScriptedLoader) -> None:
    engine.add(greedy(PROMPT, 4, "a"))
    engine.step()
    loader.arrive("a", 4)
    engine.reset_prefix_cache()
    loader.arrive_all()
    assert finish(engine, "a") == (cold(4), 4 * B)
    assert engine.manager.cached_keys() == set()
    engine.add(greedy(PROMPT, 4, "b"))
    assert finish(engine, "b") == (cold(4), 0)


def test_a_preempted_request_finds_its_pages_in_the_tier(engine: Engine, loader: ScriptedLoader) -> None:
    """Two requests outgrow the pool; the younger is thrown out, and computes nothing twice that lies in the tier."""
    first, second = random_prompt(4 * B, seed=5), random_prompt(4 * B, seed=6)
    engine.add(greedy(first, 4 * B, "a"))
    engine.add(greedy(second, 4 * B, "b"))
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    while engine.has_work:
        loader.arrive_all()
        for chunk in engine.step():
            tokens[chunk.request_id] += chunk.token_ids
        engine.manager.check_invariants()
    assert engine.scheduler.num_preemptions
    expected = run(tiny_engine(prefix_caching=False), [greedy(first, 4 * B), greedy(second, 4 * B)])
    assert [tokens["a"], tokens["b"]] == expected
    assert engine.scheduler.num_recomputed_tokens <= engine.scheduler.num_preemptions * B


def test_a_prompt_that_wants_its_logprobs_is_computed(engine: Engine, loader: ScriptedLoader) -> None:
    sampling = SamplingParams(max_tokens=2, temperature=0.0, top_logprobs=1, prompt_logprobs=True)
    engine.add(GenerateRequest("a", list(PROMPT), sampling, 0.0))
    engine.step()
    assert not loader.loads
    assert finish(engine, "a")[1] == 0


def test_pages_on_a_disk_are_hits_of_the_engine_that_starts_next(tmp_path: Path) -> None:
    """Asked for twice and evicted twice they go to the disk; no other weights' engine takes them for its own."""
    disk = {"num_blocks": 12, "disk_kv_folder": str(tmp_path), "disk_kv_size": 1 << 20, "disk_kv_write_rate": 1 << 30}
    first = tiny_engine(**disk)
    for prompt in (PROMPT, OTHER, PROMPT, OTHER):
        run(first, [greedy(prompt, 1)])
    close(first)

    second = tiny_engine(**disk)
    tiers = second.manager.tiers
    assert tiers is not None
    assert tiers.disk is not None
    wait_until(lambda: tiers.disk.is_loaded, "the folder has been read")  # type: ignore[union-attr]
    assert run(second, [greedy(PROMPT, 4)]) == [cold(4)]
    assert second.counters.num_loaded_tokens == {"disk": 8 * B}
    close(second)

    other = tiny_engine(block_size=2 * B, **disk)
    run(other, [greedy(PROMPT, 1)])
    assert not other.counters.num_loaded_tokens
    close(other)


def test_what_was_used_twice_is_on_disk_though_it_never_left_the_pool(tmp_path: Path) -> None:
    disk = {"num_blocks": 64, "disk_kv_folder": str(tmp_path), "disk_kv_size": 1 << 20, "disk_kv_write_rate": 1 << 30}
    first = tiny_engine(**disk)
    for prompt in (PROMPT, OTHER, PROMPT):
        run(first, [greedy(prompt, 1)])
    close(first)

    second = tiny_engine(**disk)
    wait_until(lambda: second.manager.tiers.disk.is_loaded, "the folder has been read")  # type: ignore[union-attr]
    assert run(second, [greedy(PROMPT, 4), greedy(OTHER, 4)])[0] == cold(4)
    assert second.counters.num_loaded_tokens == {"disk": 8 * B}
    close(second)


def close(engine: Engine) -> None:
    assert engine.loader is not None
    assert engine.manager.tiers is not None
    engine.loader.close()
    engine.manager.tiers.close()
