"""Stands in for a Serve handle in tests of the relay: each replica does what is written down for it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry
from ray.exceptions import RayActorError

from cache.block_hasher import BlockHasher
from cluster.serving.transport.serve_call import cause_of
from replica.channel.server import ChannelServer
from replica.messages import ChannelAddress, FinishReason, GenerateRequest, TokenChunk, Usage
from router.prefix_router import PrefixRouter
from router.running_set import RunningSet

SECRET = b"0123456789abcdef"
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
    """things: lists of chunks, exceptions to raise, HANG, or events to wait for (over side channels alone)."""
    return lambda request: iter(things)


@dataclass
class ScriptedReplicas:
    """`calls` holds (replica id, request) in the order of arrival, `num_open` counts those that have not ended.

    Each replica also listens for side channels, over which the same scripts are played.
    """

    scripts: dict[str, Script]
    calls: list[tuple[str, GenerateRequest]] = field(default_factory=list)
    num_open: int = 0
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    listening: dict[str, "ListeningReplica"] = field(default_factory=dict)

    def options(self, method_name: str, **options: Any) -> "ScriptedMethod":
        return ScriptedMethod(self, method_name)

    def play(self, replica_id: str, request: GenerateRequest) -> Iterator[Any]:
        self.calls.append((replica_id, request))
        return self.scripts[replica_id](request)

    def listener(self, replica_id: str) -> "ListeningReplica":
        return self.listening.setdefault(replica_id, ListeningReplica(self, replica_id))

    def close(self) -> None:
        for replica in self.listening.values():
            replica.server.close()


class ScriptedMethod:
    """Of a Serve handle."""

    def __init__(self, replicas: ScriptedReplicas, name: str):
        self._replicas = replicas
        self._name = name

    def remote(self, *args: Any, route_to: str) -> Any:
        if self._name == "generate":
            return ScriptedResponse(self._replicas, self._replicas.play(route_to, *args))
        replica = self._replicas.listener(route_to)
        return replica.address() if self._name == "channel_address" else replica.hold(*args)


class ScriptedResponse:
    """Of a Serve stream."""

    def __init__(self, replicas: ScriptedReplicas, script: Iterator[Any]):
        self._replicas = replicas
        self._script = script
        self._open = True
        replicas.num_open += 1

    def __aiter__(self) -> "ScriptedResponse":
        return self

    async def __anext__(self) -> Any:
        thing = next(self._script, None)
        if thing is HANG:
            self._replicas.hanging.set()
            await asyncio.Event().wait()
        if isinstance(thing, BaseException) or thing is None:
            self._end()
            raise thing if thing is not None else StopAsyncIteration
        if thing and thing[-1].finish_reason is not None:
            self._end()
        return thing

    def cancel(self) -> None:
        self._end()

    def _end(self) -> None:
        self._replicas.num_open -= self._open
        self._open = False


class ListeningReplica:
    """The real server of side channels over one replica's script. What Ray raises of a replica that died ends its
    connections here, and fails the calls that hold them."""

    def __init__(self, replicas: ScriptedReplicas, replica_id: str):
        self._replicas = replicas
        self._replica_id = replica_id
        self._died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.server = ChannelServer(self._generate, SECRET, replica_id, "127.0.0.1")

    async def address(self) -> ChannelAddress:
        if self._died.done():
            self._died.result()
        return await self.server.address()

    async def hold(self, channel_id: bytes) -> None:
        holding = asyncio.ensure_future(self.server.hold(channel_id))
        await asyncio.wait([holding, self._died], return_when=asyncio.FIRST_COMPLETED)
        if self._died.done():
            self._died.result()

    async def _generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenChunk], None]:
        self._replicas.num_open += 1
        try:
            for thing in self._replicas.play(self._replica_id, request):
                if thing is HANG:
                    self._replicas.hanging.set()
                    await asyncio.Event().wait()
                if isinstance(thing, asyncio.Event):
                    await thing.wait()
                    continue
                if isinstance(thing, RayActorError):
                    await asyncio.sleep(0)  # what was sent before has left this process
                    self._die(thing)
                if isinstance(thing, BaseException):
                    raise cause_of(thing)
                if thing:  # the server itself tells that it took the request
                    yield thing
        finally:
            self._replicas.num_open -= 1

    def _die(self, error: RayActorError) -> None:
        self.server.close()
        if not self._died.done():
            self._died.set_exception(error)


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
