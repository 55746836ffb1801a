"""A Serve deployment with the replica's interface that fails when it is told to: what a real engine does too seldom.

What a request does is its first token id; `arm` makes single replicas behave otherwise.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from ray import serve

from replica.channel.server import ChannelServer
from replica.errors import EngineOverloaded, RequestRefused
from replica.messages import ChannelAddress, FinishReason, GenerateRequest, TokenChunk, Usage

SECRET = b"0123456789abcdef"
ANSWER, REFUSE, DIE_MIDWAY, HANG_QUEUED, HANG_MIDWAY, FAULT = range(10, 16)


class MisbehavingReplica:
    def __init__(self) -> None:
        self.replica_id = serve.get_replica_context().replica_id.unique_id
        self._mood = ""
        self._num_open = 0
        self._registry = CollectorRegistry()
        labels = ("model", "process", "replica")
        gauge = Gauge("warmlane_running_requests", "Requests", labels, registry=self._registry)
        self._channels = ChannelServer(self._act, SECRET, self.replica_id, "127.0.0.1")
        gauge.labels("small", f"replica-{self.replica_id}", self.replica_id).set_function(lambda: self._num_open)

    async def generate(self, request: GenerateRequest, route_to: str) -> AsyncIterator[list[TokenChunk]]:
        if self._mood == "die":
            os._exit(1)
        yield []
        async with aclosing(self._act(request)) as answer:
            async for chunks in answer:
                yield chunks

    async def channel_address(self, route_to: str) -> ChannelAddress:
        return await self._channels.address()

    async def hold_channel(self, channel_id: bytes, route_to: str) -> None:
        await self._channels.hold(channel_id)

    async def _act(self, request: GenerateRequest) -> AsyncGenerator[list[TokenChunk], None]:
        self._num_open += 1
        try:
            if self._mood == "die":
                os._exit(1)
            if self._mood == "full":
                raise EngineOverloaded("full")
            action = request.token_ids[0]
            if action == REFUSE:
                raise RequestRefused("the pool is too small", param="prompt", code="context_length_exceeded")
            if action == FAULT:
                raise RuntimeError("internals")
            if action == HANG_QUEUED:
                await asyncio.Event().wait()
            yield [TokenChunk(request.request_id, text="Hel", token_ids=[1])]
            if action == DIE_MIDWAY:
                await asyncio.sleep(0.5)  # until the first chunk has left this process
                os._exit(1)
            if action == HANG_MIDWAY:
                await asyncio.Event().wait()
            yield [TokenChunk(request.request_id, text="lo", token_ids=[2])]
            usage = Usage(len(request.token_ids), 2, 0)
            yield [TokenChunk(request.request_id, finish_reason=FinishReason.STOP, usage=usage)]
        finally:
            self._num_open -= 1

    async def arm(self, mood: str, replica_id: str | None = None) -> str | None:
        """mood: "full", "die", "mute" (its metrics never come) or "" for none; replica_id: None is every replica.

        Returns the id of a replica that was meant.
        """
        if replica_id not in (None, self.replica_id):
            return None
        self._mood = mood
        return self.replica_id

    async def metrics_text(self, route_to: str | None = None) -> str:
        if self._mood == "mute":
            await asyncio.Event().wait()
        return generate_latest(self._registry).decode()

    async def describe(self, route_to: str | None = None) -> dict[str, object]:
        return {"replica_id": self.replica_id, "num_open": self._num_open}
