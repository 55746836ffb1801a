"""Warmlane's engine. Further arguments change it: "cache-off", "float32-weights" (no exact compression),
"deterministic", "without-kernels" (plain torch)."""

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

if "without-kernels" in sys.argv:
    os.environ["WARMLANE_NATIVE_KERNELS"] = "0"

from worker import Generate, serve

from cache.block_hasher import BlockHasher
from replica.config import EngineConfig
from replica.engine.warm_up import warm_up
from replica.factory import build_engine
from replica.messages import GenerateRequest
from replica.sampling_params import SamplingParams


def load(model: str, threads: int) -> Generate:
    config = EngineConfig(
        model=model, num_blocks=2048, threads=threads, prefix_caching="cache-off" not in sys.argv,
        compress_weights="float32-weights" not in sys.argv, deterministic="deterministic" in sys.argv,
    )  # fmt: skip
    engine = build_engine(config, BlockHasher(b"benchmark-secret", "benchmark", config.block_size))
    warm_up(engine)

    def generate(prompts: list[list[int]], max_tokens: int, at_first_token: Callable[[], None]) -> list[list[int]]:
        engine.reset_prefix_cache()
        outputs: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
        missing = set(outputs)
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        for name, prompt in zip(outputs, prompts, strict=True):
            engine.add(GenerateRequest(name, prompt, sampling, 0.0))
        decode_seconds = []
        while engine.has_work:
            started = time.perf_counter()
            chunks = engine.step()
            if not missing and len(chunks) == len(prompts):
                decode_seconds.append(time.perf_counter() - started)
            for chunk in chunks:
                outputs[chunk.request_id] += chunk.token_ids
                if missing and not (missing := missing - {chunk.request_id}):
                    at_first_token()
        if decode_seconds:
            generate.decode_step_seconds = statistics.median(decode_seconds)
        return list(outputs.values())

    return generate


serve(load)
