"""Stands in for the machinery behind the API in tests of the protocol alone: what an engine says is written down."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field

from replica.messages import FinishReason, GenerateRequest, TokenChunk, Usage

Script = Callable[[GenerateRequest], Iterator[TokenChunk | Exception]]


@dataclass(frozen=True)
class Decision:
    replica_id: str = "replica-a"
    predicted_hit_tokens: int = 32
    outcome: str = "warm"


def say(*texts: str, reason: FinishReason = FinishReason.STOP, cached_tokens: int = 0) -> Script:
    """One chunk per text, then the end."""

    def script(request: GenerateRequest) -> Iterator[TokenChunk | Exception]:
        for number, text in enumerate(texts):
            yield TokenChunk(request.request_id, text=text, token_ids=[number])
        usage = Usage(len(request.token_ids), len(texts), cached_tokens)
        yield TokenChunk(request.request_id, finish_reason=reason, usage=usage)

    return script


def fail(error: Exception, *texts: str) -> Script:
    def script(request: GenerateRequest) -> Iterator[TokenChunk | Exception]:
        for number, text in enumerate(texts):
            yield TokenChunk(request.request_id, text=text, token_ids=[number])
        yield error

    return script


@dataclass
class ScriptedEngine:
    """`hold` stops every call before its chunk of that number until `release` is set or the call is cancelled."""

    script: Script = field(default_factory=lambda: say("Hel", "lo"))
    hold: int | None = None
    release: asyncio.Event = field(default_factory=asyncio.Event)
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[GenerateRequest] = field(default_factory=list)
    num_running: int = 0

    def open(self, request: GenerateRequest) -> "ScriptedCall":
        self.requests.append(request)
        return ScriptedCall(self, request)


class ScriptedCall:
    def __init__(self, engine: ScriptedEngine, request: GenerateRequest):
        self._engine = engine
        self._request = request
        self.decision: Decision | None = None

    async def stream(self) -> AsyncGenerator[list[TokenChunk], None]:
        engine = self._engine
        self.decision = Decision()
        engine.num_running += 1
        try:
            for number, chunk in enumerate(engine.script(self._request)):
                if number == engine.hold:
                    engine.holding.set()
                    await engine.release.wait()
                if isinstance(chunk, Exception):
                    raise chunk
                yield [chunk]
                await asyncio.sleep(0)
        finally:
            engine.num_running -= 1

    async def collect(self) -> list[TokenChunk]:
        return [chunk async for chunks in self.stream() for chunk in chunks]
