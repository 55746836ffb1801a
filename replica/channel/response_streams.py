"""The requests that one side channel has in the engine."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from replica.channel.codec import Answered, Failed
from replica.messages import GenerateRequest, TokenChunk

logger = logging.getLogger(__name__)

Generate = Callable[[GenerateRequest], AsyncGenerator[list[TokenChunk], None]]
Send = Callable[[Answered | Failed], None]


class ResponseStreams:
    """One task per request: takes chunks from the engine and sends them. A task that is cancelled aborts its request,
    because it leaves the engine's iterator."""

    def __init__(self, generate: Generate, send: Send, writable: Callable[[], Awaitable[object]]):
        """send: does not wait. writable: waits while the other end does not keep up; what a request gets meanwhile
        piles up in the engine."""
        self._generate = generate
        self._send = send
        self._writable = writable
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, request: GenerateRequest) -> None:
        task = asyncio.create_task(self._answer(request))
        self._tasks[request.request_id] = task
        task.add_done_callback(lambda _: self._forget(request.request_id, task))

    def cancel(self, request_id: str) -> None:
        """A no-op for one that is unknown or has ended (A16)."""
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    async def _answer(self, request: GenerateRequest) -> None:
        """However it ends, the ingress hears of it."""
        self._send(Answered(request.request_id, []))
        try:
            async with aclosing(self._generate(request)) as answer:
                async for chunks in answer:
                    self._send(Answered(request.request_id, chunks))
                    if chunks[-1].finish_reason is not None:
                        return
                    await self._writable()
            raise StopAsyncIteration
        except BaseException as error:
            failed = Failed.by(request.request_id, error)
            self._send(failed)
            if failed.kind == "fault":
                logger.exception("request %s failed", request.request_id)
            elif failed.kind == "cancelled":
                raise

    def _forget(self, request_id: str, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(request_id) is task:
            del self._tasks[request_id]
