"""A replica that other routers can use too: an OpenAI port of its own on loopback, as long as the replica lives."""

import hmac
import logging
import socket
import threading
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import uvicorn
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.engine_call import RouteSummary
from cluster.api.errors import SERVER_ERROR, ApiError
from cluster.api.generation_api import GenerationApi
from cluster.api.http_app import Access, Handler, Report, build_http_app
from cluster.api.limits import KEEP_ALIVE_SECONDS, ApiLimits
from cluster.api.model_api import ModelApi
from cluster.api.prompt_reader import PromptReader
from cluster.api.request_body import read_json_object
from cluster.api.request_context import explain_context
from cluster.api.tenants import key_hash
from cluster.serving.cluster_spec import ClusterSpec
from cluster.text.tokenization import ChatTokenizer
from replica.deployment import ReplicaDeployment
from replica.engine.async_engine import AsyncEngine
from replica.errors import EngineDead
from replica.messages import GenerateRequest, TokenChunk

OPEN_PATH = "/health"
"""For whoever has to know whether this is alive; it tells nothing else."""
logger = logging.getLogger(__name__)
LEAVE_SECONDS = 3
"""What is being answered may go on so long when the replica ends."""


class LocalCall:
    """See `cluster.api.engine_call.EngineCall`."""

    def __init__(self, engine: AsyncEngine, request: GenerateRequest):
        self._engine, self._request = engine, request

    @property
    def decision(self) -> RouteSummary | None:
        return None

    async def stream(self) -> AsyncGenerator[list[TokenChunk], None]:
        async with aclosing(self._engine.generate(self._request)) as answer:  # a client that leaves ends it at once
            async for chunks in answer:
                yield chunks

    async def collect(self) -> list[TokenChunk]:
        async with aclosing(self.stream()) as answer:
            return [chunk async for chunks in answer for chunk in chunks]


class RenderApi:
    """Of vLLM's answer only what says which tokens the engine would see: `request_id`, `model`, `token_ids`."""

    def __init__(self, generation: GenerationApi, limits: ApiLimits):
        self._generation = generation
        self._limits = limits

    def handlers(self) -> Mapping[tuple[str, str], Handler]:
        return {
            ("POST", "/v1/chat/completions/render"): self.chat,
            ("POST", "/v1/completions/render"): self.completion,
        }

    async def chat(self, request: Request) -> Response:
        """The body of a chat completion; nothing is run."""
        fields = await read_json_object(request, self._limits.max_body_bytes)
        body, (token_ids,) = await self._generation.read_chat(fields, explain_context(request, fields))
        return JSONResponse(_rendered(body.model, token_ids))

    async def completion(self, request: Request) -> Response:
        """The body of a completion, one answer for each of its prompts; nothing is run."""
        fields = await read_json_object(request, self._limits.max_body_bytes)
        body, prompts = await self._generation.read_completion(fields)
        return JSONResponse([_rendered(body.model, token_ids) for token_ids in prompts])


def _rendered(model: str, token_ids: list[int]) -> dict[str, Any]:
    return {"request_id": uuid.uuid4().hex, "model": model, "token_ids": token_ids}


def build_replica_api(
    spec: ClusterSpec,
    engine: AsyncEngine,
    operations: Mapping[tuple[str, str], Handler],
    on_failure: Report,
    access: Access | None = None,
) -> FastAPI:
    """The same API code as the ingress has, without a router, and what other routers ask an engine (`RenderApi`).

    operations, on_failure, access: see `build_http_app`.
    """
    model = spec.served_model()
    reader = PromptReader(ChatTokenizer(spec.model_dir), spec.max_model_len, lambda seconds: None)
    generation = GenerationApi(model, reader, lambda request: LocalCall(engine, request), spec.limits, on_failure)
    operations = {**operations, **RenderApi(generation, spec.limits).handlers()}
    return build_http_app(generation, ModelApi(model, reader, spec.limits), operations, on_failure, access=access)


class KeyGuard:
    """ASGI application around another one: everything but `/health` needs `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, key: str):
        self._app = app
        self._key_hash = key_hash(key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != OPEN_PATH and not self._has_key(Request(scope)):
            refusal = ApiError(401, "The API key is missing or wrong.", code="invalid_api_key")
            await refusal.response({"www-authenticate": "Bearer"})(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_key(self, request: Request) -> bool:
        """Takes as long whatever key is given."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return hmac.compare_digest(key_hash(key.strip()), self._key_hash) and scheme.lower() == "bearer"


class ReplicaPort:
    """In a thread with its own event loop: the replica's loop is Serve's, and ends when Serve says so."""

    def __init__(self, spec: ClusterSpec, engine: AsyncEngine, registry: CollectorRegistry, key: str):
        """registry: what `/metrics` shows. key: asked for by everything but `/health`. Raises OSError."""
        self._engine = engine
        self._registry = registry
        api = build_replica_api(spec, engine, self._operations(), _log_refusal)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(
            KeyGuard(api, key),
            http="h11",  # httptools drops the body behind an offer to upgrade (h2c), which some clients always make
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._listener],), name="replica-api", daemon=True
        )
        self._thread.start()

    def show_in(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        """A series that tells where this port is."""
        gauge = Gauge(
            "warmlane_replica_api_info",
            "Where a replica's own API listens on loopback",
            (*labels, "url"),
            registry=registry,
        )
        gauge.labels(**labels, url=self.url).set(1)

    def check_alive(self) -> None:
        """Raises EngineDead where nobody listens any more."""
        if not self._thread.is_alive():
            raise EngineDead("the replica's API has ended")

    def close(self) -> None:
        """Returns when the port is free again; what is being answered is aborted after LEAVE_SECONDS."""
        self._server.should_exit = True
        self._thread.join(LEAVE_SECONDS + 2.0)
        self._listener.close()

    def _operations(self) -> Mapping[tuple[str, str], Handler]:
        return {("GET", "/health"): self._health, ("GET", "/metrics"): self._metrics}

    async def _health(self, request: Request) -> Response:
        """The engine works."""
        try:
            self._engine.check_health()
        except EngineDead as error:
            raise ApiError(503, f"Not ready: {error}.", type=SERVER_ERROR, code="not_ready") from error
        return JSONResponse({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        """This replica's own part of the cluster's metrics."""
        return Response(generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})


def _log_refusal(error: BaseException) -> None:
    """The engine counts what it was given; what never reached it is only noted."""
    logger.debug("a request to a replica's own API was refused: %r", error)


class ReplicaWithApi(ReplicaDeployment):
    """Where `replica_api_key` is set. What comes over the port counts as load, and the pages it leaves are in the
    routers' index, as with everything else."""

    def __init__(self, *, spec: ClusterSpec, api_key: str, **replica: Any):
        """replica: what ReplicaDeployment takes."""
        super().__init__(**replica)
        self._port = ReplicaPort(spec, self._engine, self._registry, api_key)
        labels = {"model": self._model_name, "process": self._process, "replica": self.replica_id}
        self._port.show_in(self._registry, labels)

    async def describe(self, route_to: str | None = None) -> dict[str, object]:
        return await super().describe(route_to) | {"api_url": self._port.url}

    def check_health(self) -> None:
        super().check_health()
        self._port.check_alive()

    def __del__(self) -> None:
        port = getattr(self, "_port", None)
        if port is not None:
            port.close()
        super().__del__()
