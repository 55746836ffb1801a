"""A prompt for the engine of this very process: no routing, no transport."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from cluster.api.engine_call import RouteSummary
from replica.engine.async_engine import AsyncEngine
from replica.messages import GenerateRequest, TokenChunk


class LocalCall:
    """See `cluster.api.engine_call.EngineCall`."""

    def __init__(self, engine: AsyncEngine, request: GenerateRequest):
        self._engine, self._request = engine, request

    @property
    def decision(self) -> RouteSummary | None:
        return None

    async def stream(self) -> AsyncGenerator[list[TokenChunk], None]:
        async with aclosing(self._engine.generate(self._request)) as answer:  # a client that leaves ends it at once
            async for chunks in answer:
                yield chunks

    async def collect(self) -> list[TokenChunk]:
        async with aclosing(self.stream()) as answer:
            return [chunk async for chunks in answer for chunk in chunks]
