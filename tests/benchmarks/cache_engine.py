"""One engine that is asked one prompt after the other, in a process without Ray: in this one, or in another one that
gives its pages away (`python -m tests.benchmarks.cache_engine MODEL THREADS`)."""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cache.block_hasher import BlockHasher
from replica.config import EngineConfig
from replica.engine.async_engine import AsyncEngine
from replica.engine.engine import Engine
from replica.engine.warm_up import warm_up
from replica.factory import build_engine
from replica.messages import GenerateRequest, PageAddress, Pull
from replica.sampling_params import SamplingParams
from replica.transfer.page_puller import PagePuller
from replica.transfer.page_server import PageServer

SECRET = b"benchmark-secret"
GIVER = "giver"


@dataclass(frozen=True, slots=True)
class Answer:
    """seconds: to the first token. loaded: prompt tokens that colder tiers or peers gave, by tier."""

    seconds: float
    token_ids: list[int]
    hit_tokens: int
    loaded: dict[str, int]


class AskedEngine:
    """The real engine with its thread, idle but for what is asked."""

    def __init__(self, model: Path, threads: int, **settings: Any):
        config = EngineConfig(model=str(model), threads=threads, max_model_len=2048, **settings)
        hasher = BlockHasher(SECRET, "benchmark", config.block_size)
        self.engine: Engine = build_engine(config, hasher, transfer=lambda *page: PagePuller(SECRET, *page))
        warm_up(self.engine)
        self._running = AsyncEngine(self.engine)
        self._hasher = hasher
        self._numbers = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._running.close()

    def ask(self, prompt: list[int], max_tokens: int, source: PageAddress | None = None) -> Answer:
        """Greedy. source: where pages of the whole prompt may be had."""
        return asyncio.run(self._ask(prompt, max_tokens, source))

    def reset(self) -> None:
        asyncio.run(self._running.call(Engine.reset_prefix_cache))

    def tiers_of(self, prompt: Sequence[int]) -> set[str | None]:
        """The colder tiers that hold the prompt's full pages; None among them: one lies in no such tier."""
        manager = self.engine.manager
        keys = self._hasher.keys(prompt)[manager.blocks_per_page - 1 :: manager.blocks_per_page]
        return {manager.tiers.find(key) for key in keys} if manager.tiers is not None else {None}

    async def _ask(self, prompt: list[int], max_tokens: int, source: PageAddress | None) -> Answer:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        pull = Pull(source, len(prompt)) if source is not None else None
        before = Counter(self.engine.counters.num_loaded_tokens)
        started, now = time.perf_counter(), time.monotonic()
        first, token_ids, hit_tokens = 0.0, list[int](), 0
        message = GenerateRequest(str(next(self._numbers)), prompt, sampling, now, pull=pull)
        async for chunks in self._running.generate(message):
            first = first or time.perf_counter() - started
            for chunk in chunks:
                token_ids += chunk.token_ids
                if chunk.error is not None:
                    raise RuntimeError(f"the engine could not answer: {chunk.error}")
                hit_tokens = chunk.usage.cached_tokens if chunk.usage is not None else hit_tokens
        return Answer(first, token_ids, hit_tokens, dict(self.engine.counters.num_loaded_tokens - before))


class Giver:
    """An engine in a process of its own whose pages may be pulled."""

    def __init__(self, model: Path, threads: int, log: Path):
        self._log = log.open("wb")
        command = [sys.executable, "-m", "tests.benchmarks.cache_engine", str(model), str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def __enter__(self) -> Self:
        self.address = PageAddress.from_text(GIVER, self._line())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps([prompt, max_tokens]) + "\n")
            self._process.stdin.flush()
        return Answer(*json.loads(self._line()))

    def _line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            self._process.kill()
            raise RuntimeError(f"the engine that gives pages has ended; see {self._log.name}")
        return line.rstrip("\n")


def _give(model: Path, threads: int) -> None:
    with AskedEngine(model, threads, num_blocks=256, pull=True) as asked:
        if asked.engine.page_source is None:
            raise RuntimeError("an engine without a page source gives nothing")
        server = PageServer(SECRET, GIVER, asked.engine.page_source, "127.0.0.1")
        print(server.address.to_text(), flush=True)
        for line in sys.stdin:
            answer = asked.ask(*json.loads(line))
            print(json.dumps([answer.seconds, answer.token_ids, answer.hit_tokens, answer.loaded]), flush=True)
        server.close()


if __name__ == "__main__":
    _give(Path(sys.argv[1]), int(sys.argv[2]))
