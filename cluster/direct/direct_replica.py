"""A replica that answers HTTP itself."""

import asyncio
import contextlib
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster.api.http_app import Access
from cluster.api.tenants import without_limits
from cluster.cluster_spec import ClusterSpec
from cluster.direct.http_listener import HttpListener
from cluster.direct.progress import Progress
from cluster.direct.progress_reports import ProgressReports
from cluster.direct.ticket import TicketOffice
from cluster.direct.ticket_guard import TicketGuard
from cluster.replica_api import build_replica_api
from replica.async_engine import AsyncEngine
from replica.replica_deployment import ReplicaDeployment

PROBE_PATH = "/health/direct"
TELL_SECONDS = 2.0
"""How long the ingresses may take to hear of progress; a replica that stops keeps so much of its time for that."""


class DirectAnswers:
    """The HTTP side of a replica: its API behind the guard, on a port of its own."""

    def __init__(self, spec: ClusterSpec, engine: AsyncEngine, replica_id: str, ingress_deployment: str, host: str):
        """ingress_deployment: name of the deployment, of the same application, that is told of progress."""
        self._ingress_deployment = ingress_deployment
        self._ingresses: Any = None
        self._reports = ProgressReports(self._tell)
        access = Access(keys=None if spec.api_keys is None else without_limits(spec.api_keys), admin_open=False)
        # Failures are not reported: what an engine refuses it counts itself, the rest was refused by the ingress.
        app = build_replica_api(spec, engine, {("POST", PROBE_PATH): answer_probe}, lambda error: None, access)
        self._guard = TicketGuard(app, TicketOffice(spec.secret), replica_id, self._reports.note)
        self._listener = HttpListener(self._guard, host)
        self._finish_seconds = max(0.0, spec.drain_seconds - TELL_SECONDS)

    def address(self) -> tuple[str, int]:
        return self._listener.address()

    async def finish(self) -> None:
        """Answers what has come, tells of it, and takes nothing more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._finish_seconds):
                await self._listener.close()
                await self._reports.flush()

    async def _tell(self, report: Progress) -> None:
        if self._ingresses is None:
            app_name = serve.get_replica_context().app_name
            self._ingresses = serve.get_deployment_handle(self._ingress_deployment, app_name)
        await self._ingresses.broadcast("direct_progress", report).results_async(
            timeout_s=TELL_SECONDS, return_exceptions=True
        )


async def answer_probe(request: Request) -> Response:
    """An ingress asks itself through HAProxy whether requests arrive here."""
    return JSONResponse({"status": "ok"})


class DirectReplica(ReplicaDeployment):
    """Everything that a replica is, and its own HTTP port behind HAProxy."""

    def __init__(self, *, spec: ClusterSpec, ingress_deployment: str, **engine: Any):
        """engine: arguments of ReplicaDeployment."""
        super().__init__(**engine)
        host = ray.util.get_node_ip_address()
        self._direct = DirectAnswers(spec, self._engine, self.replica_id, ingress_deployment, host)

    async def http_address(self, route_to: str | None = None) -> tuple[str, int]:
        """Where this replica answers HTTP, from the first time it is asked."""
        return self._direct.address()

    async def __del__(self) -> None:  # type: ignore[override]  # Serve takes both kinds
        """Serve awaits this when the replica is to stop and the ingresses have been told."""
        direct = getattr(self, "_direct", None)
        if direct is not None:
            await direct.finish()
        super().__del__()
