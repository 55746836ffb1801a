"""Takes one prompt through routing, a replica and, where need be, another replica."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from cluster.api.engine_call import NoReplicaAvailable, ReplicaLost, RequestTimedOut
from cluster.serving.transport.ingress_channel import ChannelLost
from cluster.serving.transport.serve_call import cause_of, is_replica_gone
from cluster.serving.transport.transports import Answer, Transport
from replica.errors import EngineOverloaded
from replica.messages import FinishReason, GenerateRequest, PageAddress, Pull, TokenChunk
from router.decision import Decision, RouteRequest
from router.prefix_router import NoReplicas, PrefixRouter

logger = logging.getLogger(__name__)


def _with_pull(request: GenerateRequest, decision: Decision) -> GenerateRequest:
    if not decision.pull_tokens:
        return request
    try:
        source = PageAddress.from_text(decision.pull_from, decision.pages_at)
    except ValueError:  # of another version: then it is computed
        return request
    return replace(request, pull=Pull(source, decision.predicted_hit_tokens + decision.pull_tokens))


def route_request(request: GenerateRequest) -> RouteRequest:
    return RouteRequest(
        request_id=request.request_id,
        token_ids=request.token_ids,
        extra_keys=request.extra_keys,
        session_id=request.session_id,
        max_new_tokens=request.sampling.max_tokens or 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """assignment_timeout_seconds: until a replica has taken the request; Ray itself would wait for ever.

    max_attempts: replicas that one request may lose before it fails. deadline_grace_seconds: so long after a request's
    deadline the engine may still say so itself. retry_after_seconds: told to clients when no replica is there.
    """

    assignment_timeout_seconds: float = 30.0
    max_attempts: int = 3
    deadline_grace_seconds: float = 2.0
    retry_after_seconds: float = 5.0

    def __post_init__(self) -> None:
        for name in ("assignment_timeout_seconds", "deadline_grace_seconds", "retry_after_seconds"):
            value = getattr(self, name)
            if not 0 < value <= 3600:
                raise ValueError(f"{name} must be above 0 and at most 3600, got {value}")
        if not 1 <= self.max_attempts <= 100:
            raise ValueError(f"max_attempts must be between 1 and 100, got {self.max_attempts}")


class RequestRelay:
    """Opens calls. One per ingress process."""

    def __init__(
        self,
        router: PrefixRouter,
        transport: Transport,
        settings: RelaySettings,
        on_answer: Callable[[], None] = lambda: None,
    ):
        """on_answer: told whenever a replica has answered (C38)."""
        self.router = router
        self.transport = transport
        self.settings = settings
        self.on_answer = on_answer

    def open(self, request: GenerateRequest) -> "RelayedCall":
        return RelayedCall(self, request)


class RelayedCall:
    """One prompt: routed, sent, followed and ended; see `cluster.api.engine_call.EngineCall`.

    A replica that dies before the client has seen a byte is replaced by another one, and a full one once. Whatever
    happens, cancellation included, the replica's work is cancelled and the reservation is ended exactly once.
    """

    def __init__(self, relay: RequestRelay, request: GenerateRequest):
        self._relay = relay
        self._request = request
        self._failures: list[tuple[str, Exception]] = []
        """The replicas that were tried and why they did not serve it."""
        self.decision: Decision | None = None

    async def stream(self) -> AsyncGenerator[list[TokenChunk], None]:
        sent = False
        try:
            while True:
                try:
                    async with aclosing(self._attempt()) as attempt:
                        async for chunks in attempt:
                            # Nothing is written for chunks without text, but their logprobs are kept for the next.
                            sent = sent or any(chunk.text or chunk.logprobs for chunk in chunks)
                            yield chunks
                    return
                except (ReplicaLost, EngineOverloaded) as error:
                    if sent:
                        raise
                    self._give_up_or_exclude(error)
        finally:
            self._relay.router.finish(self._request.request_id)

    async def collect(self) -> list[TokenChunk]:
        try:
            while True:
                try:
                    async with aclosing(self._attempt()) as attempt:
                        return [chunk async for chunks in attempt for chunk in chunks]
                except (ReplicaLost, EngineOverloaded) as error:
                    self._give_up_or_exclude(error)
        finally:
            self._relay.router.finish(self._request.request_id)

    async def _attempt(self) -> AsyncGenerator[list[TokenChunk], None]:
        """One replica's answer to its end. Raises ReplicaLost when it ends without a finish reason."""
        decision = self._route()
        request = _with_pull(self._request, decision)
        answer = await self._relay.transport.send(request, decision.replica_id)
        taken = finished = False
        try:
            while not finished:
                chunks = await self._next(answer, decision, taken)
                if not taken:
                    taken = True
                    self._relay.on_answer()
                if not chunks:
                    continue  # the replica has taken the request, that is all
                if any(chunk.token_ids for chunk in chunks):
                    self._relay.router.first_token(self._request.request_id)
                finished = chunks[-1].finish_reason is not None
                if chunks[-1].finish_reason is FinishReason.ABORT:  # not by us: the replica is shutting down (C41)
                    raise ReplicaLost(chunks[-1].error or "the replica ended the request")
                yield chunks
        finally:
            if not finished:
                answer.cancel()

    def _route(self) -> Decision:
        tried = frozenset(replica_id for replica_id, _ in self._failures)
        # A replica to which only the connection was lost is better than none.
        alive = frozenset(replica_id for replica_id, error in self._failures if isinstance(error, ChannelLost))
        try:
            self.decision = self._choose(tried)
        except NoReplicas as error:
            if alive:
                self.decision = self._choose(tried - alive)
                return self.decision
            full = self._overloads()
            if full:
                raise full[0] from error
            retry_after = self._relay.settings.retry_after_seconds
            raise NoReplicaAvailable("No replica is available; try again later.", retry_after) from error
        return self.decision

    def _choose(self, exclude: frozenset[str]) -> Decision:
        return self._relay.router.route(route_request(self._request), exclude=exclude)

    async def _next(self, answer: Answer, decision: Decision, taken: bool) -> list[TokenChunk]:
        """The next item of the replica's stream; what goes wrong is raised as one of the errors of `EngineCall`."""
        try:
            async with asyncio.timeout(self._seconds_left(taken)):
                return await anext(answer)
        except TimeoutError as error:
            if self._is_late():
                raise RequestTimedOut("The request's deadline passed.") from error
            raise NoReplicaAvailable(
                "No replica took the request in time; try again later.", self._relay.settings.retry_after_seconds
            ) from error
        except StopAsyncIteration as error:
            raise ReplicaLost("The replica's answer ended without a finish reason.") from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ReplicaLost("The replica cancelled the request.") from error  # Ray raises this for cancelled tasks
        except Exception as error:
            cause = cause_of(error)
            if not is_replica_gone(cause):
                raise cause from error
            logger.warning("replica %s lost request %s: %r", decision.replica_id, self._request.request_id, cause)
            self._relay.router.replica_failed(decision.replica_id)
            raise ReplicaLost("The replica that computed this request failed.") from error

    def _give_up_or_exclude(self, error: Exception) -> None:
        """A full replica is left for another one once; a dead one up to `max_attempts` (46)."""
        if self.decision is None:
            raise error
        self._failures.append((self.decision.replica_id, error))
        if len(self._overloads()) > 1 or len(self._failures) >= self._relay.settings.max_attempts:
            raise error

    def _overloads(self) -> list[EngineOverloaded]:
        return [error for _, error in self._failures if isinstance(error, EngineOverloaded)]

    def _seconds_left(self, taken: bool) -> float | None:
        limits = [] if taken else [self._relay.settings.assignment_timeout_seconds]
        if self._request.deadline_seconds is not None:
            grace = self._relay.settings.deadline_grace_seconds
            limits.append(max(0.0, self._request.deadline_seconds + grace - time.monotonic()))
        return min(limits, default=None)

    def _is_late(self) -> bool:
        deadline = self._request.deadline_seconds
        return deadline is not None and time.monotonic() >= deadline
