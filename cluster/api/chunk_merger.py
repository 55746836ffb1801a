"""Joins the chunk streams of all choices of one HTTP request."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing

from cluster.api.engine_call import EngineCall
from replica.messages import TokenChunk


class ChunkMerger:
    """Takes chunks from every call as they come; whoever writes them gets all that is queued at once.

    So the first token is written at once (C37), and a slow client costs larger writes and not more of them.
    """

    def __init__(self, calls: Sequence[EngineCall]):
        self._queue: deque[tuple[int, list[TokenChunk]]] = deque()
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._open = len(calls)
        self._tasks = [asyncio.create_task(self._pump(index, call)) for index, call in enumerate(calls)]

    async def next_batch(self) -> list[tuple[int, list[TokenChunk]]]:
        """Choice index and its chunks, in order of arrival; empty when all choices have ended.

        Raises what a call raised, after everything that came before it.
        """
        while not self._queue and self._open and self._failure is None:
            self._changed.clear()
            await self._changed.wait()
        if self._queue:
            batch = list(self._queue)
            self._queue.clear()
            return batch
        if self._failure is not None:
            raise self._failure
        return []

    async def aclose(self) -> None:
        """Aborts what still runs; returns when every call has let go of its replica and its reservation."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pump(self, index: int, call: EngineCall) -> None:
        try:
            async with aclosing(call.stream()) as stream:
                async for chunks in stream:
                    self._queue.append((index, chunks))
                    self._changed.set()
        except Exception as error:
            self._failure = self._failure or error
        finally:
            self._open -= 1
            self._changed.set()
