"""Stands in for a Serve handle in tests of the relay: each replica does what is written down for it."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from cache.block_hasher import BlockHasher
from replica.messages import FinishReason, GenerateRequest, TokenChunk, Usage
from router.prefix_router import PrefixRouter
from router.running_set import RunningSet

HANG = object()
"""In a script: nothing comes any more until the call is cancelled."""
Script = Callable[[GenerateRequest], Iterator[Any]]


def answer(*texts: str) -> Script:
    """First the empty item by which a replica takes a request, then one item per text, then the end."""

    def script(request: GenerateRequest) -> Iterator[Any]:
        yield []
        for number, text in enumerate(texts):
            yield [TokenChunk(request.request_id, text=text, token_ids=[number])]
        usage = Usage(len(request.token_ids), len(texts), 0)
        yield [TokenChunk(request.request_id, finish_reason=FinishReason.STOP, usage=usage)]

    return script


def items(*things: Any) -> Script:
    """things: lists of chunks, exceptions to raise, or HANG."""
    return lambda request: iter(things)


@dataclass
class ScriptedReplicas:
    """`calls` holds (replica id, request) in the order of arrival, `open_calls` those that have not ended."""

    scripts: dict[str, Script]
    calls: list[tuple[str, GenerateRequest]] = field(default_factory=list)
    open_calls: set["ScriptedResponse"] = field(default_factory=set)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    def options(self, **options: Any) -> "ScriptedReplicas":
        return self

    def remote(self, request: GenerateRequest, route_to: str) -> "ScriptedResponse":
        self.calls.append((route_to, request))
        response = ScriptedResponse(self, self.scripts[route_to](request))
        self.open_calls.add(response)
        return response


class ScriptedResponse:
    def __init__(self, replicas: ScriptedReplicas, script: Iterator[Any]):
        self._replicas = replicas
        self._script = script
        self.cancelled = False

    def __aiter__(self) -> "ScriptedResponse":
        return self

    async def __anext__(self) -> Any:
        thing = next(self._script, None)
        if thing is HANG:
            self._replicas.hanging.set()
            await asyncio.Event().wait()
        if isinstance(thing, BaseException) or thing is None:
            self._replicas.open_calls.discard(self)
            raise thing if thing is not None else StopAsyncIteration
        if thing and thing[-1].finish_reason is not None:
            self._replicas.open_calls.discard(self)
        return thing

    def cancel(self) -> None:
        self.cancelled = True
        self._replicas.open_calls.discard(self)


def router_over(*replica_ids: str) -> PrefixRouter:
    """A real router without Redis that knows these replicas and takes them in turn."""
    running = RunningSet()
    running.replace(replica_ids)
    return PrefixRouter(
        model="small",
        hasher=BlockHasher(b"0123456789abcdef", "fingerprint", 4),
        redis_url=None,
        policy="round_robin",
        policy_weights={},
        registry=CollectorRegistry(),
        process="ingress-test",
        rng=Random(0),
        max_model_len=256,
        running_set=running,
    )
