"""A loopback port with the OpenAI API of one engine, as long as its replica lives."""

import logging
import socket
import threading
from collections.abc import Mapping

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster.api.bearer_gate import BearerGate
from cluster.api.errors import SERVER_ERROR, ApiError
from cluster.api.http_app import Handler
from cluster.api.limits import KEEP_ALIVE_SECONDS
from cluster.serving.cluster_spec import ClusterSpec
from cluster.serving.replica_api import build_replica_api
from replica.engine.async_engine import AsyncEngine
from replica.errors import EngineDead

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 3
"""What is being answered may go on so long when the replica ends."""


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
            BearerGate(api, key),
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
