"""What the servers of `bench_http` are asked, and what came back: times at the client, CPU time at the server."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import aiohttp

from tests.benchmarks.http_apps import MODEL
from tests.benchmarks.http_sides import Side
from tests.benchmarks.instant_engine import WORD

_WORDS = ("river", "valley", "mill", "morning", "stone", "garden", "winter", "bridge", "letter", "harbour", "market")
_request_number = count()


@dataclass(frozen=True, slots=True)
class HttpWork:
    """num_requests chats of about prompt_words words, `concurrency` at once, max_tokens out, a step each step_ms."""

    name: str
    num_requests: int
    concurrency: int
    max_tokens: int
    stream: bool = True
    step_ms: int = 0
    prompt_words: int = 12

    def body(self) -> bytes:
        """Unlike any other request's from the first words on."""
        rng = random.Random(next(_request_number))
        text = " ".join(rng.choices(_WORDS, k=self.prompt_words))
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self.max_tokens,
            "priority": self.step_ms,
            "stream": self.stream,
        }
        return json.dumps(body | ({"stream_options": {"include_usage": True}} if self.stream else {})).encode()


WORKS = (
    HttpWork("unary_c8", 160, 8, 1, stream=False),
    HttpWork("unpaced_64_c8", 64, 8, 64),
    HttpWork("paced_64_c32", 64, 32, 64, step_ms=20),
    HttpWork("ttft_1000_c1", 24, 1, 4, prompt_words=965),
)


@dataclass(slots=True)
class HttpRun:
    """One work on one side. Seconds per request; cpu_seconds of the server for all of them; events: SSE chunks."""

    cpu_seconds: float = 0.0
    apart_seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    num_events: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def cpu_ms(self) -> float:
        return self.cpu_seconds * 1e3 / len(self.total)

    @property
    def total_ms(self) -> float:
        return statistics.median(self.total) * 1e3

    @property
    def first_ms(self) -> float:
        return statistics.median(self.first) * 1e3


async def run_work(side: Side, work: HttpWork) -> HttpRun:
    """Raises RuntimeError when an answer is not what the engine wrote, so that no error passes for speed."""
    run = HttpRun()
    bodies = iter([work.body() for _ in range(work.num_requests)])
    connector = aiohttp.TCPConnector(limit=work.concurrency)
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        before = side.cpu_seconds()
        await asyncio.gather(*(_user(session, side, work, bodies, run) for _ in range(work.concurrency)))
        after = side.cpu_seconds()
    run.cpu_seconds, run.apart_seconds = after[0] - before[0], after[1] - before[1]
    return run


async def _user(
    session: aiohttp.ClientSession, side: Side, work: HttpWork, bodies: Iterator[bytes], run: HttpRun
) -> None:
    for body in bodies:  # one iterator for all users
        started = time.perf_counter()
        first = 0.0
        received = b""
        async with session.post(f"{side.url}/v1/chat/completions", data=body) as response:
            async for part in response.content.iter_any():
                received += part
                if not first and WORD.encode() in received:
                    first = time.perf_counter() - started
        run.total.append(time.perf_counter() - started)
        run.first.append(first)
        if response.status != 200:
            raise RuntimeError(f"{side.name} answered {response.status} to {work.name}: {received[:300]!r}")
        _check(side, work, received, run)


def _check(side: Side, work: HttpWork, received: bytes, run: HttpRun) -> None:
    if work.stream:
        events = [line[6:] for line in received.split(b"\n") if line.startswith(b"data: ")]
        parsed = [json.loads(event) for event in events[:-1]]
        text = "".join(choice["delta"].get("content") or "" for event in parsed for choice in event["choices"])
        usage, done = parsed[-1]["usage"], events[-1] == b"[DONE]"
        run.num_events += len(events) - 2
    else:
        answer = json.loads(received)
        text, usage, done = answer["choices"][0]["message"]["content"], answer["usage"], True
    if text != WORD * work.max_tokens or usage["completion_tokens"] != work.max_tokens or not done:
        raise RuntimeError(f"{side.name} answered something else to {work.name}: {received[-300:]!r}")
    run.prompt_tokens += usage["prompt_tokens"]
    run.completion_tokens += usage["completion_tokens"]
