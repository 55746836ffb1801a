"""What `bench_http` puts behind HTTP: one API, on plain uvicorn, in our ingress, and the way Ray's examples do it."""

import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from ray import serve

from cluster.api.engine_call import EngineCall, OpenCall, RouteSummary
from cluster.api.generation_api import GenerationApi, ServedModel
from cluster.api.http_app import build_http_app
from cluster.api.limits import ApiLimits
from cluster.api.model_api import ModelApi
from cluster.api.prompt_reader import PromptReader
from cluster.serving.app import INGRESS_DEPLOYMENT, MAX_ONGOING_REQUESTS, REPLICA_DEPLOYMENT, REQUEST_ROUTER
from cluster.serving.cluster_spec import ClusterSpec
from cluster.serving.ingress import Ingress
from cluster.serving.replica_port import build_replica_api
from cluster.text.tokenization import ChatTokenizer
from replica.channel.server import ChannelServer
from replica.engine.async_engine import AsyncEngine
from replica.messages import ChannelAddress, GenerateRequest, TokenChunk
from tests.benchmarks.instant_engine import InstantEngine

MODEL = "instant"
OUR_TRANSPORTS = ("side_channel", "handle")
UVICORN, PYTHON_PROXY, RAY_DEFAULT = "uvicorn", "python_proxy", "ray_default"
NUM_REPLICAS = 2
SECRET = b"0123456789abcdef"


def spec_of(model_dir: str, transport: str = "handle") -> ClusterSpec:
    return ClusterSpec(
        served_model_name=MODEL,
        model_dir=model_dir,
        fingerprint="0" * 32,
        secret=SECRET,
        block_size=16,
        max_model_len=8192,
        redis_url=None,
        policy="round_robin",
        transport=transport,
    )


class InstantReplica:
    """The replica's calls over an engine that answers at once; the engine's thread is the real one."""

    def __init__(self) -> None:
        self._engine = AsyncEngine(InstantEngine())  # type: ignore[arg-type]
        replica_id = serve.get_replica_context().replica_id.unique_id
        self._channels = ChannelServer(self._engine.generate, SECRET, replica_id, "127.0.0.1")

    async def generate(self, request: GenerateRequest, route_to: str | None = None) -> AsyncIterator[list[TokenChunk]]:
        yield []
        async for chunks in self._engine.generate(request):
            yield chunks

    async def channel_address(self, route_to: str | None = None) -> ChannelAddress:
        return await self._channels.address()

    async def hold_channel(self, channel_id: bytes, route_to: str | None = None) -> None:
        await self._channels.hold(channel_id)

    async def generate_each(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """One item a token, as Ray's own examples stream."""
        async for chunks in self._engine.generate(request):
            for chunk in chunks:
                yield chunk

    async def describe(self, route_to: str | None = None) -> dict[str, object]:
        return {}


def our_application(model_dir: str, transport: str) -> Any:
    """The real ingress, relay and request router."""
    replicas = _replicas(request_router_config={"request_router_class": REQUEST_ROUTER})
    return _ingress(Ingress).bind(spec_of(model_dir, transport), replicas)


def default_application(model_dir: str) -> Any:
    """The same API over a plain handle stream and Ray's own routing."""
    return _ingress(PlainIngress).bind(spec_of(model_dir), _replicas())


def _replicas(**options: Any) -> Any:
    deployment = serve.deployment(InstantReplica).options(
        name=REPLICA_DEPLOYMENT, num_replicas=NUM_REPLICAS, max_ongoing_requests=MAX_ONGOING_REQUESTS,
        ray_actor_options={"num_cpus": 0.1}, **options,
    )  # fmt: skip
    return deployment.bind()


def _ingress(kind: type) -> Any:
    return serve.deployment(kind).options(
        name=INGRESS_DEPLOYMENT, max_ongoing_requests=MAX_ONGOING_REQUESTS, ray_actor_options={"num_cpus": 0.1}
    )


@serve.ingress()
class PlainIngress:
    def __init__(self, spec: ClusterSpec, replica_handle: Any):
        generate = replica_handle.options(method_name="generate_each", stream=True)
        self._app = api_app(spec, lambda request: PlainCall(lambda: generate.remote(request)))

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app


class PlainCall(EngineCall):
    """No routing, no retry: what the engine says, handed on."""

    def __init__(self, open_stream: Callable[[], Any]):
        self._open_stream = open_stream

    @property
    def decision(self) -> RouteSummary | None:
        return None

    async def stream(self) -> AsyncGenerator[list[TokenChunk], None]:
        async for item in self._open_stream():
            yield item if isinstance(item, list) else [item]

    async def collect(self) -> list[TokenChunk]:
        return [chunk async for chunks in self.stream() for chunk in chunks]


def api_app(spec: ClusterSpec, open_call: OpenCall) -> FastAPI:
    model = ServedModel(
        name=spec.served_model_name,
        fingerprint=spec.fingerprint,
        max_model_len=spec.max_model_len,
        created=int(time.time()),
    )
    limits = ApiLimits()
    reader = PromptReader(ChatTokenizer(spec.model_dir), spec.max_model_len, lambda seconds: None)
    generation = GenerationApi(model, reader, open_call, limits, lambda error: None)
    return build_http_app(generation, ModelApi(model, reader, limits), {}, lambda error: None)


def serve_with_uvicorn(model_dir: str, port: int) -> None:
    engine = AsyncEngine(InstantEngine())  # type: ignore[arg-type]
    app = build_replica_api(spec_of(model_dir), engine, {}, lambda error: None)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    serve_with_uvicorn(sys.argv[1], int(sys.argv[2]))
