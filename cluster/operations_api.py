"""What people and machines ask about the cluster itself: health, metrics, and why a request went where it went."""

from collections.abc import Mapping
from itertools import islice

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster.api.errors import SERVER_ERROR, ApiError, bad_request
from cluster.api.generation_api import GenerationApi
from cluster.api.http_app import Handler
from cluster.api.limits import ApiLimits
from cluster.api.request_body import read_json_object
from cluster.api.request_context import explain_context
from cluster.cluster_scrape import ClusterScrape
from cluster.readiness import NotReady, Readiness
from router.prefix_router import NoReplicas, PrefixRouter, RouteRequest

MAX_DECISIONS = 1000


class OperationsApi:
    def __init__(
        self,
        router: PrefixRouter,
        generation: GenerationApi,
        scrape: ClusterScrape,
        readiness: Readiness,
        limits: ApiLimits,
    ):
        self._router = router
        self._generation = generation
        self._scrape = scrape
        self._readiness = readiness
        self._limits = limits

    def handlers(self) -> Mapping[tuple[str, str], Handler]:
        return {
            ("GET", "/health"): self.ready,
            ("GET", "/health/ready"): self.ready,
            ("GET", "/health/live"): self.live,
            ("GET", "/metrics"): self.metrics,
            ("POST", "/v1/explain"): self.explain,
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

    async def explain(self, request: Request) -> Response:
        """The body of a chat or a completion; answers with the decision for each of its prompts and runs nothing."""
        fields = await read_json_object(request, self._limits.max_body_bytes)
        chat = "messages" in fields
        body, prompts = await (self._generation.read_chat(fields) if chat else self._generation.read_completion(fields))
        requests = self._generation.engine_requests(body, prompts, "explain", explain_context(request, fields))
        try:
            decisions = [
                self._router.explain(
                    RouteRequest(
                        request_id="explain",
                        token_ids=request.token_ids,
                        max_new_tokens=request.sampling.max_tokens or 0,
                        extra_keys=request.extra_keys,
                        session_id=request.session_id,
                    )
                ).to_dict()
                for request in islice(requests, 0, None, body.num_choices)
            ]
        except NoReplicas as error:
            raise ApiError(503, "No replica is running.", type=SERVER_ERROR, code="no_replica_available") from error
        return JSONResponse({"object": "list", "data": decisions})

    async def decisions(self, request: Request) -> Response:
        """The last decisions of this ingress, the newest first."""
        limit = request.query_params.get("limit", "100")
        if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit[:9]) <= MAX_DECISIONS:
            raise bad_request(f"limit must be between 1 and {MAX_DECISIONS}, got {limit[:50]!r}", "limit")
        newest = islice(reversed(list(self._router.log)), int(limit))
        return JSONResponse({"object": "list", "data": [decision.to_dict() for decision in newest]})

    async def router_status(self, request: Request) -> Response:
        """What the router of this ingress knows about replicas, Redis and itself."""
        return JSONResponse(self._router.status())
