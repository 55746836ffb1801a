"""One request's answer as it comes over a side channel."""

import asyncio
from collections import deque
from collections.abc import Callable

from replica.messages import TokenChunk


class Inbox:
    """Reads like the response of a Serve stream. `put` and `end` are for the channel, the rest for the relay."""

    def __init__(self, on_done: Callable[[bool], None]):
        """on_done: called once, when nothing more is to come or to be read; True where the replica must be told."""
        self._items: deque[list[TokenChunk]] = deque()
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._on_done = on_done
        self._done = False

    def put(self, chunks: list[TokenChunk]) -> None:
        self._items.append(chunks)
        self._changed.set()
        if chunks and chunks[-1].finish_reason is not None:
            self._finish(replica_knows=True)

    def end(self, error: BaseException) -> None:
        """Nothing more will come; `error` is raised after everything that came before it."""
        self._error = error
        self._changed.set()
        self._finish(replica_knows=True)

    async def __anext__(self) -> list[TokenChunk]:
        """All that is there, joined; waits for the first. An empty list says that the replica took the request."""
        while not self._items:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        chunks = [chunk for item in self._items for chunk in item]
        self._items.clear()
        return chunks

    def cancel(self) -> None:
        """Aborts the request in the replica; nothing more is read."""
        self._finish(replica_knows=False)

    def _finish(self, replica_knows: bool) -> None:
        if not self._done:
            self._done = True
            self._on_done(not replica_knows)
