"""Runs one generation while its client is there, and writes the answer."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from cluster.api.answer_format import DONE_EVENT
from cluster.api.chunk_merger import ChunkMerger
from cluster.api.engine_call import EngineCall, OpenCall
from cluster.api.failures import from_exception
from cluster.api.generation import Generation, route_headers, usage_of, whole_choice
from cluster.api.responses import sum_usage
from replica.messages import TokenChunk, Usage

logger = logging.getLogger(__name__)

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class ClientGone(Exception):
    """The connection broke while the answer was written."""


class GenerationResponse(Response):
    """Everything happens in `__call__`: nothing is reserved before it begins, and nothing is left when it ends.

    The client is watched from the first moment on, whether the request is queued, prefilling or decoding, streamed or
    not: when it goes, the work is cancelled, which aborts it in the engines (24, A13). An error before the first token
    is an HTTP error; later it ends the stream with an error event and without [DONE] (54).
    """

    def __init__(self, generation: Generation, open_call: OpenCall, on_failure: Callable[[BaseException], None]):
        """on_failure: told of every exception that becomes an HTTP error or an error event."""
        super().__init__()
        self._generation = generation
        self._open_call = open_call
        self._on_failure = on_failure
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._answer(scope, receive, _guarded(send)))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            work.cancel()  # does nothing when it has ended
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        calls = [self._open_call(request) for request in self._generation.requests]
        try:
            if self._generation.stream:
                await self._stream(calls, send)
            else:
                body = await self._collect(calls)
                headers = route_headers(calls)
                await Response(body, 200, headers, "application/json")(scope, receive, send)
        except ClientGone:
            return
        except Exception as error:
            failure = from_exception(error)
            if failure.status == 500:
                logger.exception("request %s failed", self._generation.head.id, exc_info=error)
            self._on_failure(error)
            if self._started:
                await _send_body(send, failure.event(), more=False)
            else:
                await failure.response(route_headers(calls))(scope, receive, send)

    async def _collect(self, calls: list[EngineCall]) -> bytes:
        """The whole body. The first failure aborts the other choices."""
        tasks = [asyncio.create_task(call.collect()) for call in calls]
        try:
            answers = await asyncio.gather(*tasks)
            readers = map(self._generation.reader_of, range(len(answers)))
            choices = [whole_choice(*each) for each in zip(answers, readers, strict=True)]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        usage = sum_usage([usage for _, usage in choices], self._generation.choices_per_prompt)
        return self._generation.format.whole(self._generation.head, [delta for delta, _ in choices], usage)

    async def _stream(self, calls: list[EngineCall], send: Send) -> None:
        generation = self._generation
        writer = generation.format.event_writer(generation.head, generation.include_usage)
        usages: dict[int, Usage] = {}
        readers = [generation.reader_of(index) for index in range(len(calls))]
        begun: set[int] = set()
        async with aclosing(ChunkMerger(calls)) as merger:
            while batch := await merger.next_batch():
                events = []
                for index, chunks in _by_choice(batch):
                    if chunks[-1].finish_reason is not None:
                        usages[index] = usage_of(chunks[-1])
                    delta = readers[index].read(chunks)
                    if delta is not None:
                        events.append(writer.event(index, delta, index not in begun))
                        begun.add(index)
                if events:
                    await self._start(calls, send)
                    await _send_body(send, b"".join(events), more=True)
        last = DONE_EVENT
        if generation.include_usage:
            in_order = [usages[index] for index in range(len(calls))]
            last = writer.usage_event(sum_usage(in_order, generation.choices_per_prompt)) + last
        await self._start(calls, send)
        await _send_body(send, last, more=False)

    async def _start(self, calls: list[EngineCall], send: Send) -> None:
        if self._started:
            return
        self._started = True
        headers = STREAM_HEADERS | route_headers(calls)
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})


def _by_choice(batch: Iterable[tuple[int, list[TokenChunk]]]) -> Iterable[tuple[int, list[TokenChunk]]]:
    """All queued chunks of each choice together, so that each becomes one event."""
    joined: dict[int, list[TokenChunk]] = {}
    for index, chunks in batch:
        joined.setdefault(index, []).extend(chunks)
    return joined.items()


def _guarded(send: Send) -> Send:
    """Servers tell by OSError that the client has gone; a timeout behind the API is an OSError too, but means no such
    thing."""

    async def guarded(message: Message) -> None:
        try:
            await send(message)
        except OSError as error:
            raise ClientGone from error

    return guarded


async def _send_body(send: Send, body: bytes, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _disconnected(receive: Receive) -> None:
    """Returns when the client has gone. The request's body was read before, so nothing else can come."""
    while (await receive())["type"] != "http.disconnect":
        pass
