"""The engine's thread, spoken to from asyncio: leaving early, dying, being stuck."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from replica.engine.async_engine import AsyncEngine
from replica.errors import EngineDead, RequestRefused
from replica.messages import FinishReason, GenerateRequest, TokenChunk
from tests.replica.tiny_models import generate, greedy, random_prompt, reference_model, tiny_engine
from tests.waiting import BOUND_SECONDS, eventually


@pytest.fixture
async def running() -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(tiny_engine(max_num_batched_tokens=16, max_num_seqs=4))
    yield engine
    engine.close()


async def collect(engine: AsyncEngine, request: GenerateRequest) -> list[TokenChunk]:
    return [chunk async for chunks in engine.generate(request) for chunk in chunks]


def is_idle(engine: AsyncEngine) -> bool:
    inner = engine.engine
    return not inner.has_work and not inner.manager.pool.num_active and not engine._subscribers


async def test_many_at_once_answer_as_they_do_alone(running: AsyncEngine) -> None:
    prompts = [random_prompt(3 + 5 * position, seed=position) for position in range(8)]
    answers = await asyncio.gather(*(collect(running, greedy(prompt, 6)) for prompt in prompts))
    for prompt, chunks in zip(prompts, answers, strict=True):
        assert [token for chunk in chunks for token in chunk.token_ids] == generate(reference_model(), prompt, 6)
        assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [FinishReason.LENGTH]
    assert is_idle(running)


async def test_evicted_pages_come_back_beside_the_steps_of_others() -> None:
    """A pool of 12 blocks and four prompts of 8, again and again, with real threads."""
    engine = AsyncEngine(tiny_engine(num_blocks=12, host_kv_memory=1 << 20, max_num_batched_tokens=16, max_num_seqs=4))
    prompts = [random_prompt(35, seed=seed) for seed in range(4)]
    expected = [generate(reference_model(), prompt, 4) for prompt in prompts]
    try:
        for _ in range(3):
            answers = await asyncio.gather(*(collect(engine, greedy(prompt, 4)) for prompt in prompts))
            assert [[token for chunk in chunks for token in chunk.token_ids] for chunks in answers] == expected
        await eventually(lambda: is_idle(engine))
        assert engine.engine.counters.num_loaded_tokens["host"] >= 32
        assert engine.engine.counters.num_failed_steps == 0
    finally:
        engine.close()


async def test_a_refusal_comes_before_anything_else_and_hurts_nobody(running: AsyncEngine) -> None:
    with pytest.raises(RequestRefused, match="no tokens"):
        await collect(running, greedy([], 4))
    assert (await collect(running, greedy([1, 2], 2)))[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("num_chunks", [0, 1, 5])
async def test_a13_24_leaving_at_any_stage_aborts_the_request(running: AsyncEngine, num_chunks: int) -> None:
    request = greedy(random_prompt(60, seed=1), 400)
    stream = running.generate(request)
    for _ in range(num_chunks):
        await anext(stream)
    await stream.aclose()
    await eventually(lambda: is_idle(running))
    assert running.engine.counters.num_generated_tokens < 400


async def test_a13_a14_cancelling_the_task_aborts_queued_and_running_ones(running: AsyncEngine) -> None:
    """6 tasks, 4 places: at the cancel some run and some wait."""
    tasks = [asyncio.create_task(collect(running, greedy(random_prompt(9, seed=seed), 500))) for seed in range(6)]
    await eventually(lambda: len(running.engine.scheduler.running) == 4)
    for task in tasks:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    await eventually(lambda: is_idle(running))
    assert running.engine.counters.num_finished[FinishReason.ABORT] == 6


async def test_26_27_aborts_that_race_with_the_end(running: AsyncEngine) -> None:
    """Leaves after chunk n of n: the abort meets a request that ends, or has ended, in the same step."""
    for num_tokens in range(1, 7):
        stream = running.generate(greedy(random_prompt(5, seed=num_tokens), num_tokens))
        for _ in range(num_tokens):
            if (await anext(stream))[-1].finish_reason:
                break
        await stream.aclose()
    await eventually(lambda: is_idle(running))
    await running.call(lambda engine: engine.manager.check_invariants())
    assert sum(running.engine.counters.num_finished.values()) == 6


async def test_a16_aborting_the_unknown_is_a_no_op(running: AsyncEngine) -> None:
    running.abort("never seen")
    assert (await collect(running, greedy([1, 2], 2)))[-1].finish_reason is FinishReason.LENGTH


async def test_39_the_double_of_an_id_is_refused_and_the_first_goes_on(
    running: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, run = threading.Semaphore(1), running.engine._runner.run

    def gated(*args: object) -> object:
        steps.acquire(timeout=20)
        return run(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(running.engine._runner, "run", gated)
    first = running.generate(greedy([1, 2, 3], 30, "same"))
    await anext(first)
    double = asyncio.create_task(collect(running, greedy([4, 5], 3, "same")))
    await asyncio.sleep(0)  # it is sent, and the second step is still to come
    steps.release(100)
    with pytest.raises(RequestRefused, match="running already"):
        await double
    rest = [chunk async for chunks in first for chunk in chunks]
    assert rest[-1].finish_reason is FinishReason.LENGTH


async def test_a17_an_abort_waits_for_the_step_that_writes_the_pages(
    running: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    run = running.engine._runner.run

    def slow(*args: object) -> object:
        inside.set()
        go_on.wait(20)
        return run(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(running.engine._runner, "run", slow)
    task = asyncio.create_task(collect(running, greedy(random_prompt(9, seed=2), 50)))
    await eventually(inside.is_set)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert running.engine.manager.pool.num_active > 0
    go_on.set()
    await eventually(lambda: is_idle(running))


async def test_55_a_loop_that_cannot_work_fails_its_health_and_its_requests(
    running: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.check_health()

    def broken(*args: object) -> None:
        raise MemoryError("no memory for logits")

    monkeypatch.setattr(running.engine._runner, "run", broken)
    for _ in range(4):
        last = (await collect(running, greedy([1, 2], 2)))[-1]
        assert (last.finish_reason, last.error) == (
            FinishReason.ERROR,
            "the engine's step failed: no memory for logits",
        )
        running.check_health()
    await collect(running, greedy([1, 2], 2))
    await eventually(lambda: not running._thread.is_alive())
    with pytest.raises(EngineDead, match="5 steps failed one after another"):
        running.check_health()
    with pytest.raises(EngineDead, match="5 steps failed"):
        await collect(running, greedy([1, 2], 2))


async def test_55_a_loop_that_dies_ends_all_requests(running: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a fault of the scheduler")

    tasks = [asyncio.create_task(collect(running, greedy(random_prompt(9, seed=seed), 500))) for seed in range(6)]
    await eventually(lambda: bool(running.engine.scheduler.running))
    monkeypatch.setattr(running.engine.scheduler, "schedule", broken)
    for chunks in await asyncio.gather(*tasks):
        assert chunks[-1].finish_reason is FinishReason.ERROR
        assert "a fault of the scheduler" in str(chunks[-1].error)
    with pytest.raises(EngineDead):
        running.check_health()


async def test_55_a_stuck_step_fails_the_health(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = AsyncEngine(tiny_engine(), stuck_after_seconds=0.05)
    go_on = threading.Event()
    monkeypatch.setattr(engine.engine._runner, "run", lambda *args: go_on.wait(20))
    task = asyncio.create_task(collect(engine, greedy([1, 2], 2)))

    def is_stuck() -> bool:
        try:
            engine.check_health()
        except EngineDead as error:
            return "has been running for more than" in str(error)
        return False

    await eventually(is_stuck)
    go_on.set()
    await asyncio.gather(task, return_exceptions=True)
    engine.close()


async def test_closing_ends_what_runs(running: AsyncEngine) -> None:
    task = asyncio.create_task(collect(running, greedy([1, 2, 3], 500)))
    await eventually(lambda: bool(running.engine.scheduler.running))
    await asyncio.to_thread(running.close)
    assert (await task)[-1].finish_reason is FinishReason.ABORT
    with pytest.raises(EngineDead, match="closed"):
        await collect(running, greedy([1], 1))


async def test_c6_the_load_counts_requests_that_wait_for_a_step_to_end(running: AsyncEngine) -> None:
    """A prefill step on a CPU takes seconds; a router that sees nothing of what it sent would send more."""
    step_ends = threading.Event()
    long_step = asyncio.create_task(running.call(lambda _: step_ends.wait(20.0)))
    answers = [asyncio.create_task(collect(running, greedy(random_prompt(30, seed=seed), 2))) for seed in range(3)]
    await eventually(lambda: running.load().num_waiting == 3)
    assert running.load().queued_prefill_tokens == 90
    answers[0].cancel()
    await eventually(lambda: running.load().num_waiting == 2)
    step_ends.set()
    await asyncio.gather(long_step, *answers[1:])
    await eventually(lambda: is_idle(running))
    assert (running.load().num_waiting, running.load().queued_prefill_tokens) == (0, 0)


@pytest.mark.parametrize("dies", [False, True])
async def test_what_was_asked_during_the_last_step_gets_an_answer(
    running: AsyncEngine, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """Closed or dead: whoever came while the last step ran is told so, and none waits for ever."""
    in_step, step_ends = threading.Event(), threading.Event()

    def last_step(*args: object) -> None:
        in_step.set()
        step_ends.wait(20.0)
        if dies:
            raise SystemExit("the last step")

    monkeypatch.setattr(running.engine._runner, "run", last_step)
    first = asyncio.create_task(collect(running, greedy([1, 2, 3], 5)))
    await asyncio.to_thread(in_step.wait, 20.0)
    late = [asyncio.create_task(collect(running, greedy([1], 1))), asyncio.create_task(running.call(lambda _: 1))]
    await eventually(lambda: len(running._inbox) == 2)
    closing = asyncio.create_task(asyncio.to_thread(running.close))
    await eventually(lambda: running._closing)
    step_ends.set()
    async with asyncio.timeout(20):
        assert [type(error) for error in await asyncio.gather(*late, return_exceptions=True)] == [EngineDead] * 2
        await asyncio.gather(first, closing)


async def test_closing_while_a_step_hangs_ends_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, go_on = AsyncEngine(tiny_engine()), threading.Event()
    monkeypatch.setattr(engine.engine._runner, "run", lambda *args: go_on.wait())
    task = asyncio.create_task(collect(engine, greedy([1, 2], 2)))
    await eventually(lambda: engine._step_started is not None)
    await asyncio.to_thread(engine.close, 0.01)
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            assert (await task)[-1].finish_reason is FinishReason.ERROR
    finally:
        go_on.set()
