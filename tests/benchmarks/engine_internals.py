"""What a step costs beside the model's forward pass, and what the scheduler costs alone."""

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cache.block_hasher import BlockHasher
from cache.kv_cache_manager import KVCacheManager
from replica.config import EngineConfig
from replica.engine.scheduler import Scheduler
from replica.factory import build_engine
from replica.messages import GenerateRequest
from replica.request import Request
from replica.sampling_params import SamplingParams

_HASHER = BlockHasher(b"benchmark-secret", "benchmark", 16)


def decode_step(model: Path, threads: int, num_requests: int, num_steps: int = 40) -> dict[str, float]:
    """Median decode step: all of it, and what lies outside the forward pass (scheduling, layout, sampling, text).

    weight_bytes: what a step reads of weights, 0 where the forward pass does not tell.
    """
    engine = build_engine(EngineConfig(model=str(model), num_blocks=1024, threads=threads), _HASHER)
    forward_seconds: list[float] = []
    runner: Any = engine._runner
    weight_bytes = getattr(runner._model, "num_weight_bytes", 0)
    runner._model = _Timed(runner._model, forward_seconds)
    rng = random.Random(0)
    for i in range(num_requests):
        prompt = [rng.randrange(engine.vocab_size) for _ in range(128)]
        engine.add(
            GenerateRequest(str(i), prompt, SamplingParams(max_tokens=256, temperature=0.0, ignore_eos=True), 0.0)
        )
    while engine.scheduler.num_queued_prefill_tokens:
        engine.step()
    forward_seconds.clear()
    steps = [_seconds(engine.step) for _ in range(num_steps)]
    outside = [step - forward for step, forward in zip(steps, forward_seconds, strict=True)]
    step, rest = statistics.median(steps), statistics.median(outside)
    return {
        "step_ms": step * 1e3, "outside_ms": rest * 1e3, "outside_share": rest / step, "weight_bytes": weight_bytes,
    }  # fmt: skip


class _Timed:
    """Passes everything on and notes how long calls take."""

    def __init__(self, forward: Any, seconds: list[float]):
        self._forward, self._seconds = forward, seconds
        self.device = forward.device

    def __call__(self, **arguments: Any) -> Any:
        started = time.perf_counter()
        output = self._forward(**arguments)
        self._seconds.append(time.perf_counter() - started)
        return output


def scheduler_only(num_blocks: int, num_running: int = 256, num_steps: int = 200) -> float:
    """Milliseconds of CPU per decode step of `schedule` and `commit`, tokens appended as the engine does; the median.

    CPU time of this thread, so that a busy machine does not count.
    """
    scheduler = Scheduler(
        KVCacheManager(num_blocks, 16), _HASHER, max_num_seqs=num_running, max_num_batched_tokens=8192
    )
    rng = random.Random(0)
    for i in range(num_running):
        prompt = [rng.randrange(49_152) for _ in range(128)]
        message = GenerateRequest(str(i), prompt, SamplingParams(max_tokens=1024), 0.0)
        scheduler.add(Request(message, 128 + 1024, _HASHER.keys(prompt)))
    seconds = []
    for _ in range(num_steps + 8):
        started = time.thread_time()
        plan = scheduler.schedule()
        scheduler.commit(plan)
        seconds.append(time.thread_time() - started)
        for item in plan.scheduled:
            if item.samples:
                scheduler.append_token(item.request, rng.randrange(49_152))
    return statistics.median(seconds[8:]) * 1e3


def _seconds(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started
