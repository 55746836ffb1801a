"""What people and machines ask about the cluster itself: health, metrics, and where requests went."""

from collections.abc import Mapping
from itertools import islice

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster.api.errors import SERVER_ERROR, ApiError, bad_request
from cluster.api.http_app import Handler
from cluster.serving.cluster_scrape import ClusterScrape
from cluster.serving.readiness import NotReady, Readiness
from router.prefix_router import PrefixRouter

MAX_DECISIONS = 1000


class OperationsApi:
    def __init__(self, router: PrefixRouter, scrape: ClusterScrape, readiness: Readiness):
        self._router = router
        self._scrape = scrape
        self._readiness = readiness

    def handlers(self) -> Mapping[tuple[str, str], Handler]:
        return {
            ("GET", "/health"): self.ready,
            ("GET", "/health/ready"): self.ready,
            ("GET", "/health/live"): self.live,
            ("GET", "/metrics"): self.metrics,
            ("GET", "/debug/decisions"): self.decisions,
            ("GET", "/debug/router"): self.router_status,
        }

    async def live(self, request: Request) -> Response:
        """This process answers; restarting it would not help with anything else."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """A request would be served now."""
        try:
            await self._readiness.check()
        except NotReady as error:
            raise ApiError(503, f"Not ready: {error}.", type=SERVER_ERROR, code="not_ready") from error
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        page, content_type = await self._scrape.page(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    async def decisions(self, request: Request) -> Response:
        """The last decisions of this ingress, the newest first."""
        limit = request.query_params.get("limit", "100")
        digits = limit.lstrip("0") if limit.isascii() and limit.isdecimal() else ""
        if not 1 <= len(digits) <= len(str(MAX_DECISIONS)) or int(digits) > MAX_DECISIONS:
            raise bad_request(f"limit must be between 1 and {MAX_DECISIONS}, got {limit[:50]!r}", "limit")
        newest = islice(reversed(list(self._router.log)), int(digits))
        return JSONResponse({"object": "list", "data": [decision.to_dict() for decision in newest]})

    async def router_status(self, request: Request) -> Response:
        """What the router of this ingress knows about replicas, Redis and itself."""
        return JSONResponse(self._router.status())
