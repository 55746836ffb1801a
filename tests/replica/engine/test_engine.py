"""What one engine computes and gives out, counted by its own counters."""

from dataclasses import replace

import psutil
import pytest
import torch

from cache.block_hasher import BlockHasher, ExtraKeys
from replica.attention.pages import KVPages, LayerShape
from replica.config import EngineConfig
from replica.engine.engine import Engine
from replica.engine.load import MeasuredSpeed
from replica.errors import EngineOverloaded, RequestRefused
from replica.factory import build_engine
from replica.messages import FinishReason, GenerateRequest, TokenChunk
from replica.sampling_params import SamplingParams
from tests.replica.tiny_models import (
    BLOCK_SIZE,
    VOCAB_SIZE,
    WINDOW,
    generate,
    greedy,
    loaded,
    random_model,
    random_prompt,
    reference_model,
    run,
    tiny_config,
    tiny_engine,
)

B = BLOCK_SIZE


def request(request_id: str, prompt: list[int], extra: ExtraKeys | None = None, **sampling: object) -> GenerateRequest:
    params = SamplingParams(**{"temperature": 0.0, **sampling})  # type: ignore[arg-type]
    return GenerateRequest(request_id, prompt, params, 0.0, extra or ExtraKeys())


def finish(engine: Engine) -> dict[str, TokenChunk]:
    """Steps until idle; returns each request's last chunk."""
    last = {}
    while engine.has_work:
        for chunk in engine.step():
            if chunk.finish_reason is not None:
                last[chunk.request_id] = chunk
        engine.manager.check_invariants()
    assert_idle(engine)
    return last


def assert_idle(engine: Engine) -> None:
    """Everything is back: no pages held, no bookkeeping left (A13, A15, A19)."""
    assert engine.manager.pool.num_active == engine.counters.num_leaked_pages == 0
    assert not engine.scheduler.waiting
    assert not engine.scheduler.running
    leftovers = {name: value for name, value in vars(engine).items() if isinstance(value, dict) and value}
    assert leftovers == {}
    assert engine._outputs.is_empty
    engine.manager.check_invariants()


def answer(prompt: list[int], max_tokens: int) -> list[int]:
    return generate(reference_model(), prompt, max_tokens)


def test_counting_positions() -> None:
    """500 prompt tokens and 200 generated ones are 699 positions; again, only the last block and the answer."""
    model = loaded(random_model(tiny_config("Llama", max_position_embeddings=1024)))
    config = EngineConfig(model="tiny", block_size=16, num_blocks=64)
    engine = build_engine(config, BlockHasher(bytes(16), "tiny", 16), loaded=replace(model, max_model_len=1024))
    prompt = [position % 251 for position in range(500)]
    first = run(engine, [greedy(prompt, 200)])
    assert engine.counters.num_computed_positions == 699
    assert run(engine, [greedy(prompt, 200)]) == first
    assert engine.counters.num_computed_positions - 699 == 500 - 496 + 199 <= 16 + 199


def test_the_page_example_through_a_running_engine() -> None:
    engine = tiny_engine(block_size=4)
    run(engine, [greedy([ord(letter) for letter in "ABCDEFGHIJKL"], 1)])
    computed = engine.counters.num_computed_positions
    run(engine, [greedy([ord(letter) for letter in "ABCDEFGXIJKL"], 1)])
    assert engine.counters.num_hit_tokens == 4
    assert engine.counters.num_computed_positions - computed == 8


@pytest.mark.parametrize("length", [B, 2 * B, 2 * B + 1, 3 * B - 1])
def test_a1_2_an_identical_prompt_hits_all_but_its_last_block(length: int) -> None:
    engine, prompt = tiny_engine(), random_prompt(length, seed=length)
    cold = run(engine, [greedy(prompt, 6)])
    before = engine.counters.num_hit_tokens
    assert run(engine, [greedy(prompt, 6)]) == cold == [answer(prompt, 6)]
    assert engine.counters.num_hit_tokens - before == B * ((length - 1) // B)


def test_a2_4_a_prompt_whose_pages_were_reused_is_computed_again() -> None:
    engine = tiny_engine(num_blocks=8)
    first = random_prompt(3 * B, seed=1)
    expected = run(engine, [greedy(first, 4)])
    for seed in range(2, 6):
        run(engine, [greedy(random_prompt(6 * B, seed=seed), 4)])
    hits = engine.counters.num_hit_tokens
    assert run(engine, [greedy(first, 4)]) == expected
    assert engine.counters.num_hit_tokens == hits


def test_a3_warm_equals_cold_after_a_stop_string_and_an_abort() -> None:
    engine, prompt = tiny_engine(), random_prompt(19, seed=3)
    expected = answer(prompt, 24)
    word = bytes(token for token in expected[8:10] if token < 128).decode() or "\x00"
    engine.add(request("stopped", prompt, max_tokens=24, stop=(word,)))
    engine.add(request("aborted", prompt, max_tokens=24))
    for _ in range(12):
        engine.step()
    engine.abort("aborted")
    finish(engine)
    assert run(engine, [greedy(prompt, 24)]) == [expected]
    longer = prompt + expected[:20]  # over all that the two computed
    assert run(engine, [greedy(longer, 4)]) == [expected[20:24]]
    assert engine.counters.num_hit_tokens > 19


def test_a8_5_identical_prompts_in_one_batch_answer_alike() -> None:
    prompt = random_prompt(5 * B + 1, seed=5)
    assert run(tiny_engine(), [greedy(prompt, 8) for _ in range(8)]) == [answer(prompt, 8)] * 8


def test_a12_a_prefix_that_somebody_computes_is_not_computed_twice() -> None:
    """8 identical cold prompts at once: one prefix and 8 tails; the first is not slowed."""
    engine = tiny_engine(max_num_batched_tokens=16, max_num_seqs=8)
    prompt = random_prompt(16 * B + 2, seed=6)
    requests = [greedy(prompt, 1) for _ in range(8)]
    for each in requests:
        engine.add(each)
    steps_of_first = 0
    while requests[0].request_id not in {chunk.request_id for chunk in engine.step()}:
        steps_of_first += 1
    finish(engine)
    assert steps_of_first + 1 == -(-len(prompt) // 16)
    assert engine.counters.num_computed_positions == len(prompt) + 7 * 2
    assert engine.scheduler.num_inflight_shared_tokens == 7 * 16 * B


def test_a12_waiting_for_a_prefix_ends_when_its_owner_is_aborted() -> None:
    engine = tiny_engine(max_num_batched_tokens=8, max_num_seqs=8)
    prompt = random_prompt(16 * B, seed=7)
    first, second = greedy(prompt, 2), greedy(prompt, 2)
    engine.add(first)
    engine.add(second)
    engine.step()
    engine.abort(first.request_id)
    assert finish(engine)[second.request_id].finish_reason is FinishReason.LENGTH


def test_a16_aborting_the_unknown_the_queued_and_the_finished() -> None:
    engine = tiny_engine()
    assert engine.abort("never seen") is None
    engine.add(request("queued", random_prompt(9, seed=8), max_tokens=4))
    chunk = engine.abort("queued")
    assert chunk is not None
    assert (chunk.finish_reason, chunk.token_ids) == (FinishReason.ABORT, [])
    assert engine.abort("queued") is None
    engine.add(request("done", random_prompt(9, seed=8), max_tokens=1))
    finish(engine)
    assert engine.abort("done") is None
    assert engine.counters.num_computed_positions == 9
    assert engine.counters.num_finished[FinishReason.ABORT] == 1


@pytest.mark.parametrize("num_steps", range(8))
def test_a13_24_c40_an_abort_at_any_stage_gives_everything_back(num_steps: int) -> None:
    engine, prompt = tiny_engine(max_num_batched_tokens=16, max_num_seqs=4), random_prompt(50, seed=9)
    engine.add(request("leaves", prompt, max_tokens=20))
    for _ in range(num_steps):
        engine.step()
    computed = engine.counters.num_computed_positions
    engine.abort("leaves")
    assert_idle(engine)
    assert engine.step() == []
    assert engine.counters.num_computed_positions == computed
    # What was computed before may be hit, and nothing else (A21).
    assert run(engine, [greedy(prompt, 4)]) == [answer(prompt, 4)]
    assert engine.counters.num_hit_tokens <= computed


def test_a21_a_failed_step_ends_its_requests_and_leaves_nothing_to_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt = tiny_engine(), random_prompt(20, seed=10)
    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "run", lambda *args: torch.empty(0)[1])
        engine.add(request("unlucky", prompt, max_tokens=4))
        chunk = finish(engine)["unlucky"]
    assert chunk.finish_reason is FinishReason.ERROR
    assert chunk.error is not None
    assert engine.counters.num_failed_steps == 1
    assert engine.manager.cached_keys() == set()
    assert run(engine, [greedy(prompt, 4)]) == [answer(prompt, 4)]


def test_a22_48_what_can_never_fit_is_refused_and_others_are_served() -> None:
    engine = tiny_engine(num_blocks=8)
    with pytest.raises(
        RequestRefused, match=r"33 tokens and max_tokens is 1, but this replica's KV cache is 32"
    ) as info:
        engine.add(request("big", random_prompt(33, seed=11), max_tokens=1))
    assert (info.value.param, info.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(RequestRefused, match="20 tokens and max_tokens is 13, but") as info:
        engine.add(request("long", random_prompt(20, seed=11), max_tokens=13))
    assert info.value.param == "max_tokens"
    assert finish(engine) == {}
    assert run(engine, [greedy(random_prompt(20, seed=11), 12)]) == [answer(random_prompt(20, seed=11), 12)]
    assert engine.counters.num_finished[FinishReason.REJECTED] == 2


def test_14_15_the_window_bounds_prompt_and_answer() -> None:
    engine = tiny_engine()
    with pytest.raises(RequestRefused, match=rf"{WINDOW} tokens .* the model's context length is {WINDOW}"):
        engine.add(request("full", random_prompt(WINDOW, seed=12)))
    engine.add(request("open end", random_prompt(WINDOW - 3, seed=12)))
    chunk = finish(engine)["open end"]
    assert chunk.finish_reason is FinishReason.LENGTH
    assert chunk.usage is not None
    assert chunk.usage.completion_tokens == 3


@pytest.mark.parametrize(("prompt", "message"), [([], "no tokens"), ([1, VOCAB_SIZE], "token id 260"), ([-1], "id -1")])
def test_a39_11_19_prompts_that_would_kill_an_engine_are_refused(prompt: list[int], message: str) -> None:
    engine = tiny_engine()
    with pytest.raises(RequestRefused, match=message):
        engine.add(request("bad", prompt, max_tokens=4))
    assert_idle(engine)
    assert run(engine, [greedy([1, 2, 3], 4)]) == [answer([1, 2, 3], 4)]


def test_a39_an_answer_of_eos_alone() -> None:
    prompt = random_prompt(7, seed=13)
    first = answer(prompt, 1)[0]
    engine = tiny_engine(eos_token_ids=[first])
    engine.add(request("silent", prompt, max_tokens=9))
    chunk = finish(engine)["silent"]
    assert (chunk.text, chunk.finish_reason, chunk.token_ids) == ("", FinishReason.STOP, [first])
    engine.add(request("told on", prompt, max_tokens=9, ignore_eos=True))
    assert finish(engine)["told on"].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("length", range(1, B + 2))
def test_a41_prompts_shorter_than_a_page(length: int) -> None:
    prompt = random_prompt(length, seed=14 + length)
    engine = tiny_engine()
    assert [run(engine, [greedy(prompt, 5)]) for _ in range(2)] == [[answer(prompt, 5)]] * 2


def test_a20_chunked_prefill_without_prefix_caching() -> None:
    engine, prompt = (
        tiny_engine(prefix_caching=False, max_num_batched_tokens=8, max_num_seqs=8),
        random_prompt(80, seed=20),
    )
    assert [run(engine, [greedy(prompt, 3)]) for _ in range(2)] == [[answer(prompt, 3)]] * 2
    assert engine.counters.num_hit_tokens == 0
    assert_idle(engine)


def test_a27_work_done_again_after_preemption_is_no_hit() -> None:
    engine = tiny_engine(num_blocks=12, watermark=0.0)
    prompts = [random_prompt(15, seed=seed) for seed in (21, 22)]
    answers = run(engine, [greedy(prompt, 20) for prompt in prompts])
    assert answers == [answer(prompt, 20) for prompt in prompts]
    assert engine.scheduler.num_preemptions >= 1
    assert engine.counters.num_hit_tokens == 0
    assert engine.counters.num_prompt_tokens == 30
    assert engine.scheduler.num_recomputed_tokens >= 1


@pytest.mark.parametrize("num_blocks", [6, 7, 9, 13])
def test_a24_48_every_request_finishes_in_a_pool_far_too_small(num_blocks: int) -> None:
    engine = tiny_engine(num_blocks=num_blocks)
    prompts = [random_prompt(5 + seed % 7, seed=seed) for seed in range(30, 40)]
    assert run(engine, [greedy(prompt, 12) for prompt in prompts]) == [answer(prompt, 12) for prompt in prompts]
    assert_idle(engine)
    assert engine.scheduler.num_preemptions <= 12 * len(prompts)


def test_a23_a_big_request_is_passed_by_small_ones_for_a_bounded_time() -> None:
    engine = tiny_engine(num_blocks=16, max_num_seqs=4, max_num_batched_tokens=64)
    engine.add(request("long runner", random_prompt(20, seed=41), max_tokens=12))
    engine.step()
    engine.add(request("big", random_prompt(50, seed=42), max_tokens=2))
    engine.add(request("small", random_prompt(3, seed=43), max_tokens=2))
    order = []
    while engine.has_work:
        order += [chunk.request_id for chunk in engine.step() if chunk.finish_reason]
    assert order == ["small", "long runner", "big"]


def test_53_what_waits_past_its_deadline_is_never_computed() -> None:
    engine = tiny_engine(max_num_seqs=1)
    now = [100.0]
    engine._clock = lambda: now[0]
    engine.add(request("runs", random_prompt(6, seed=44), max_tokens=6))
    engine.step()
    waiting = GenerateRequest("waits", [1, 2, 3], SamplingParams(), 100.0, deadline_seconds=102.0)
    engine.add(waiting)
    engine.step()
    now[0] = 102.5
    last = finish(engine)
    assert (last["waits"].finish_reason, last["waits"].token_ids) == (FinishReason.TIMEOUT, [])
    assert last["runs"].finish_reason is FinishReason.LENGTH
    assert engine.counters.num_prompt_tokens == 6


def test_53_the_queue_is_bounded_in_requests_and_tokens() -> None:
    engine = tiny_engine(max_waiting_requests=2, max_waiting_tokens=30)
    engine.add(request("one", [1] * 20))
    with pytest.raises(EngineOverloaded, match="20 tokens wait already, the bound is 30"):
        engine.add(request("too many tokens", [1] * 11))
    engine.add(request("two", [1] * 10))
    with pytest.raises(EngineOverloaded, match="2 requests wait already, the bound is 2"):
        engine.add(request("three", [1]))


def test_51_a32_another_salt_computes_everything_again() -> None:
    engine, prompt = tiny_engine(), random_prompt(4 * B, seed=45)
    computed = []
    for position, salt in enumerate(("a", "b", None, "a", "b", None)):
        before = engine.counters.num_computed_positions
        engine.add(request(f"{position}", prompt, ExtraKeys(cache_salt=salt), max_tokens=1))
        finish(engine)
        computed.append(engine.counters.num_computed_positions - before)
    assert computed == [4 * B] * 3 + [B] * 3


def test_39_a_double_of_a_running_id_is_refused() -> None:
    engine = tiny_engine()
    engine.add(request("same", [1, 2, 3], max_tokens=3))
    with pytest.raises(RequestRefused, match="running already"):
        engine.add(request("same", [4, 5, 6], max_tokens=3))
    assert finish(engine)["same"].usage is not None


def test_18_logits_that_are_not_finite_end_one_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt = tiny_engine(), random_prompt(9, seed=47)
    run_model = engine._runner.run

    def broken(plan: object, tables: object) -> torch.Tensor:
        logits: torch.Tensor = run_model(plan, tables).clone()
        logits[0] = float("nan")
        return logits

    engine.add(request("victim", random_prompt(8, seed=48), max_tokens=5))
    engine.add(request("neighbour", prompt, max_tokens=1))
    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "run", broken)
        chunks = {chunk.request_id: chunk for chunk in engine.step()}
    assert chunks["victim"].finish_reason is FinishReason.ERROR
    assert chunks["neighbour"].token_ids == answer(prompt, 1)


def test_reset_forgets_the_cache_of_an_idle_engine() -> None:
    engine, prompt = tiny_engine(), random_prompt(4 * B, seed=49)
    run(engine, [greedy(prompt, 1)])
    engine.reset_prefix_cache()
    assert run(engine, [greedy(prompt, 1)]) == [answer(prompt, 1)]
    assert engine.counters.num_hit_tokens == 0


@pytest.mark.parametrize("page_size", [2 * B, 16 * B, 64 * B])
def test_large_pages_hit_at_the_grain_of_a_hash_block(page_size: int) -> None:
    """A partly matching page is copied on write: neither request sees the other's tokens (A7)."""
    engine = tiny_engine(page_size=page_size, num_blocks=32 * page_size // B)
    common = random_prompt(11 * B, seed=60)
    prompts = [common + random_prompt(3 * B + extra, seed=61 + extra) for extra in range(3)]
    expected = [answer(prompt, 6) for prompt in prompts]
    assert run(engine, [greedy(prompts[0], 6)]) == expected[:1]
    assert run(engine, [greedy(prompt, 6) for prompt in prompts[1:]]) == expected[1:]
    assert engine.counters.num_hit_tokens == 2 * 11 * B
    assert run(engine, [greedy(prompt, 6) for prompt in prompts]) == expected
    assert_idle(engine)


def test_a19_pages_held_while_nothing_runs_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    engine = tiny_engine()
    engine.manager.admit("nobody", engine.manager.match([], 9), 9)
    run(engine, [greedy([1, 2, 3], 2)])
    assert engine.counters.num_leaked_pages == 3
    assert "3 pages are held although no request runs" in caplog.text


def test_53_the_deadline_is_of_the_whole_request() -> None:
    """What runs when it passes ends too, with its pages back and its text so far given out."""
    engine = tiny_engine()
    now = [100.0]
    engine._clock = lambda: now[0]
    engine.add(
        GenerateRequest("r", [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=50), 100.0, deadline_seconds=102.0)
    )
    given = [engine.step() for _ in range(3)]
    now[0] = 102.0
    last = finish(engine)["r"]
    assert sum(len(chunk.token_ids) for chunks in given for chunk in chunks) == 3
    assert (last.finish_reason, last.error) == (FinishReason.TIMEOUT, "the request's deadline passed")
    assert engine.counters.num_computed_positions == 3 + 2


def test_a11_29_prompts_of_one_prefix_at_once_under_pressure() -> None:
    """Prefilled side by side, then decoding in a pool that holds one and a half of them."""
    prefix = random_prompt(6 * B, seed=30)
    prompts = [prefix + random_prompt(3, seed) for seed in (31, 32)]
    engine = tiny_engine(num_blocks=16, watermark=0.0)
    answers = run(engine, [greedy(prompt, 24) for prompt in prompts])
    assert answers == [answer(prompt, 24) for prompt in prompts]
    assert engine.scheduler.num_preemptions > 0
    assert_idle(engine)


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_52_the_same_prompt_five_times_is_answered_alike(prefix_caching: bool) -> None:
    prompt = random_prompt(5 * B + 2, seed=33)
    engine = tiny_engine(prefix_caching=prefix_caching)
    assert [run(engine, [greedy(prompt, 12)])[0] for _ in range(5)] == [answer(prompt, 12)] * 5
    assert (engine.counters.num_hit_tokens > 0) == prefix_caching


def test_a35_c34_another_adapter_computes_everything_again() -> None:
    prompt = random_prompt(3 * B, seed=34)
    engine = tiny_engine()
    for adapter, num_hits in (("weights-1", 0), ("weights-1", 2 * B), ("weights-2", 0), (None, 0)):
        before = engine.counters.num_hit_tokens
        run(engine, [replace(greedy(prompt, 1), extra_keys=ExtraKeys(adapter=adapter))])
        assert engine.counters.num_hit_tokens - before == num_hits


@pytest.mark.parametrize("num_equal", [3, 2 * B, 2 * B + 3])
def test_a42_a_next_turn_hits_as_far_as_its_ids_are_those_of_the_turn_before(num_equal: int) -> None:
    """A template that drops thinking, or text whose ids differ from the sampled ones, ends the hit there."""
    first = random_prompt(3 * B, seed=35)
    engine = tiny_engine()
    (told,) = run(engine, [greedy(first, 2 * B)])
    history = first + told
    different = [(token + 1) % 256 for token in history[num_equal:]]
    run(engine, [greedy(history[:num_equal] + different, 1)])
    assert engine.counters.num_hit_tokens == num_equal // B * B


@pytest.mark.parametrize("fault", ["text", "first_token", "next_token", "finished"])
def test_a_fault_while_a_token_is_given_out_hurts_that_request_alone(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Text of its own: the request fails. An observer's fault: nobody does."""
    engine, prompts = tiny_engine(), {name: random_prompt(9, seed=seed) for seed, name in enumerate("ab")}
    read = engine._outputs.read

    def broken(*args: object) -> object:
        if fault == "text" and args[0].id != "a":  # type: ignore[attr-defined]
            return read(*args)  # type: ignore[arg-type]
        raise RuntimeError("broken")

    if fault == "text":
        monkeypatch.setattr(engine._outputs, "read", broken)
    else:
        monkeypatch.setattr(engine.books.observer, fault, broken)
    for name, prompt in prompts.items():
        engine.add(request(name, prompt, max_tokens=4))
    last = finish(engine)
    assert last["b"].finish_reason is FinishReason.LENGTH
    assert last["a"].finish_reason is (FinishReason.ERROR if fault == "text" else FinishReason.LENGTH)
    assert fault != "text" or "broken" in str(last["a"].error)


@pytest.mark.parametrize("seconds", [-1.0, 0.0])
def test_a_step_that_took_no_time_tells_nothing_of_the_speed(seconds: float) -> None:
    cost = MeasuredSpeed()
    cost.observe_tokens(64, 0, 1.0)
    cost.observe_tokens(0, 4, 0.5)
    before = replace(cost)
    cost.observe_tokens(64, 0, seconds)
    cost.observe_tokens(0, 4, seconds)
    assert cost == before


@pytest.mark.parametrize("skew", [-5.0, 5.0])
def test_53_clocks_that_differ_change_neither_deadline_nor_times(monkeypatch: pytest.MonkeyPatch, skew: float) -> None:
    """An ingress's clock shows 1000 s when the request leaves it and 100 s more, or less, on the replica's machine."""
    sent = GenerateRequest("r", [1], SamplingParams(), 998.0, deadline_seconds=1003.0)
    monkeypatch.setattr("replica.messages.time.monotonic", lambda: 1000.0)
    on_the_wire = sent.leaving()
    monkeypatch.setattr("replica.messages.time.monotonic", lambda: 1000.0 + skew)
    taken = on_the_wire.arrived()
    assert (taken.arrival_seconds, taken.deadline_seconds) == (998.0 + skew, 1003.0 + skew)


def test_pages_take_memory_when_they_are_written() -> None:
    process, size = psutil.Process(), 1 << 30
    before = process.memory_info().rss
    pages = KVPages([LayerShape(1, 64, 64)], size // (16 * 128 * 4), 16, torch.float32, torch.device("cpu"))
    assert process.memory_info().rss - before < size // 8
    keys, values = pages.layer(0)
    assert not keys[-1].any() and not values[-1].any()
