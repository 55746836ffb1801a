"""An engine in a thread of its own, spoken to from asyncio."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from cache.wire.records import ReplicaLoad
from replica.engine.engine import Engine
from replica.engine.load import engine_load
from replica.errors import EngineDead
from replica.messages import FinishReason, GenerateRequest, TokenChunk

logger = logging.getLogger(__name__)
T = TypeVar("T")

_MAX_FAILED_STEPS = 5
"""So many failed steps in a row mean that the engine cannot work at all."""


class _Subscriber:
    """Hands chunks from the engine's thread to one asyncio consumer."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self.queue: asyncio.Queue[TokenChunk] = asyncio.Queue()


class AsyncEngine:
    """`generate` and `abort` may be called from any event loop; only the thread touches the engine.

    Calls are queued and done between steps, so nothing is freed that a running step may still write (A17).
    """

    def __init__(self, engine: Engine, *, stuck_after_seconds: float = 120.0):
        """stuck_after_seconds: a step that takes longer fails the health check."""
        self._engine = engine
        self._stuck_after_seconds = stuck_after_seconds
        self._inbox: deque[tuple[Callable[[], None], Future[Any] | None]] = deque()
        self._wake = threading.Condition()
        self._subscribers: dict[str, _Subscriber] = {}
        self._arriving: dict[_Subscriber, int] = {}
        self._dead: str | None = None
        self._closing = False
        self._failed_in_a_row = 0
        self._step_started: float | None = None
        if engine.loader is not None:
            engine.loader.on_end = self.wake
        if engine.manager.tiers is not None:
            engine.manager.tiers.on_change = lambda: self._post(engine.publish_events)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenChunk], None]:
        """Yields what has become visible since the last time, at least one chunk; the last chunk has a finish reason.

        Raises RequestRefused, EngineOverloaded or EngineDead before the first yield. Leaving the iterator early, by
        whatever way, aborts the request (A13, A14).
        """
        subscriber = _Subscriber(asyncio.get_running_loop())
        finished = False
        try:
            self._arriving[subscriber] = self._engine.num_uncached_tokens(request)
            if request.sampling.grammar is not None:  # compiling one may take a second, which no step should wait for
                await asyncio.to_thread(self._engine.prepare, request)
            await asyncio.wrap_future(self._call(lambda: self._add(request, subscriber)))
            while not finished:
                chunks = [await subscriber.queue.get()]
                while not subscriber.queue.empty():
                    chunks.append(subscriber.queue.get_nowait())
                finished = chunks[-1].finish_reason is not None
                yield chunks
        finally:
            self._arriving.pop(subscriber, None)
            if not finished:
                self.abort(request.request_id, subscriber)

    def abort(self, request_id: str, subscriber: object | None = None) -> None:
        """Ends a request at the next step's edge; a no-op for one that is unknown or has ended (A16).

        subscriber: where given, only the request that it follows is ended (an id may be refused as a double, 39).
        """

        def abort() -> None:
            if subscriber is None or self._subscribers.get(request_id) is subscriber:
                chunk = self._engine.abort(request_id)
                if chunk is not None:
                    self._deliver([chunk])

        if self._dead is None:
            self._post(abort)

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        """Runs a function on the engine between two steps and returns its result. Raises EngineDead."""
        return await asyncio.wrap_future(self._call(lambda: function(self._engine)))

    def wait_for(self, function: Callable[[Engine], T]) -> T:
        """The same from a thread, which waits for it. Raises EngineDead."""
        found: T = self._call(lambda: function(self._engine)).result()
        return found

    @property
    def engine(self) -> Engine:
        """For reading counters and gauges from other threads: single numbers, possibly one step old."""
        return self._engine

    def load(self) -> ReplicaLoad:
        """What routers are told, from any thread. Requests that wait for a long step to end before the engine takes
        them are counted: routers would send more to a replica that seems to have less to do than it has (C6)."""
        load = engine_load(self._engine.scheduler, self._engine.speed)
        arriving = list(self._arriving.values())
        return replace(
            load,
            num_waiting=load.num_waiting + len(arriving),
            queued_prefill_tokens=load.queued_prefill_tokens + sum(arriving),
        )

    def check_health(self) -> None:
        """Raises EngineDead when the loop has died or a step is stuck (55)."""
        started = self._step_started
        if self._dead is not None:
            raise EngineDead(self._dead)
        if not self._thread.is_alive():
            raise EngineDead("the engine's thread has ended")
        if started is not None and time.monotonic() - started > self._stuck_after_seconds:
            raise EngineDead(f"a step has been running for more than {self._stuck_after_seconds:.0f} s")

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Ends the thread; what still runs is aborted, also where the thread hangs in its last step."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_seconds)
        if self._engine.loader is not None:
            self._engine.loader.close()
        if self._engine.manager.tiers is not None:
            self._engine.manager.tiers.close()
        if self._thread.is_alive():
            self._die(f"the engine was closed and its last step took longer than {timeout_seconds:.0f} s")

    def _call(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._post(run, future)
        return future

    def _post(self, action: Callable[[], None], future: Future[Any] | None = None) -> None:
        with self._wake:
            if self._dead is None and not self._closing:
                self._inbox.append((action, future))
                self._wake.notify()
            else:
                self._refuse(future)

    def _refuse(self, future: Future[Any] | None) -> None:
        """Nobody will ever do what this future stands for."""
        if future is not None and future.set_running_or_notify_cancel():
            future.set_exception(EngineDead(self._dead or "the engine is closed"))

    def _add(self, request: GenerateRequest, subscriber: _Subscriber) -> None:
        self._arriving.pop(subscriber, None)
        self._engine.add(request)
        self._subscribers[request.request_id] = subscriber

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._drain_inbox()
                if self._engine.can_step:
                    self._step()
            self._end_all("the engine is shutting down", FinishReason.ABORT)
            self._refuse_pending()
        except BaseException as error:
            logger.exception("the engine's loop has died")
            self._die(f"the engine's loop has died: {type(error).__name__}: {error}")

    def _wait_for_work(self) -> bool:
        """False when the engine is to end."""
        with self._wake:
            while not (self._inbox or self._closing or self._engine.can_step):
                late_at = self._engine.next_deadline
                self._wake.wait(None if late_at is None else max(0.0, late_at - time.monotonic()))
            return not self._closing

    def wake(self) -> None:
        """From any thread: a load has ended."""
        with self._wake:
            self._wake.notify()

    def _drain_inbox(self) -> None:
        while self._inbox:
            action, _ = self._inbox.popleft()
            action()

    def _step(self) -> None:
        self._step_started = time.monotonic()
        failed_before = self._engine.counters.num_failed_steps
        chunks = self._engine.step()
        self._step_started = None
        failed = self._engine.counters.num_failed_steps > failed_before
        self._failed_in_a_row = self._failed_in_a_row + 1 if failed else 0
        self._deliver(chunks)
        if self._failed_in_a_row >= _MAX_FAILED_STEPS:
            raise RuntimeError(f"{self._failed_in_a_row} steps failed one after another")

    def _deliver(self, chunks: list[TokenChunk]) -> None:
        """One wake-up per event loop and step, however many requests got a token."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Subscriber, TokenChunk]]] = {}
        for chunk in chunks:
            known = self._subscribers
            subscriber = known.pop(chunk.request_id, None) if chunk.finish_reason else known.get(chunk.request_id)
            if subscriber is not None:
                by_loop.setdefault(subscriber.loop, []).append((subscriber, chunk))
        for loop, pairs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, pairs)
            except RuntimeError:  # that event loop is closed: nobody is left to read
                logger.debug("a consumer's event loop is closed")

    def _end_all(self, message: str, reason: FinishReason) -> None:
        chunks = [TokenChunk(request_id, finish_reason=reason, error=message) for request_id in list(self._subscribers)]
        self._deliver(chunks)

    def _die(self, message: str) -> None:
        with self._wake:
            self._dead = message
        self._end_all(message, FinishReason.ERROR)
        self._refuse_pending()

    def _refuse_pending(self) -> None:
        """What was asked for during the last step; nothing can be added to the inbox any more."""
        with self._wake:
            pending, self._inbox = self._inbox, deque()
        for _, future in pending:
            self._refuse(future)


def _put_all(pairs: list[tuple[_Subscriber, TokenChunk]]) -> None:
    for subscriber, chunk in pairs:
        subscriber.queue.put_nowait(chunk)
