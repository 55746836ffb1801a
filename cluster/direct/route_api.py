"""What HAProxy asks before it sends a request to a replica."""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from cluster.api.entrance import Entrance
from cluster.api.errors import SERVER_ERROR, ApiError
from cluster.api.generation_api import GenerationApi
from cluster.api.http_app import Handler
from cluster.api.limits import ApiLimits
from cluster.api.request_body import read_json_object
from cluster.api.request_context import RequestContext, context_of
from cluster.api.tenant_limits import TenantLimits
from cluster.direct.direct_replica import PROBE_PATH
from cluster.direct.open_routes import OpenRoutes
from cluster.direct.replica_addresses import ReplicaAddresses
from cluster.direct.ticket import TicketOffice
from cluster.route_requests import route_request
from replica.messages import GenerateRequest
from router.prefix_router import NoReplicas, PrefixRouter

ROUTE_SUFFIX = "/route"


class RouteApi:
    """Answers 200 with "host port ticket" for what may go direct. Anything else sends the request to an ingress, whose
    answer the client then gets: so a refusal here needs no form, and nothing is counted.

    The body is read, checked and tokenised as for an answer, and again by the replica.
    """

    def __init__(
        self,
        router: PrefixRouter,
        generation: GenerationApi,
        addresses: ReplicaAddresses,
        routes: OpenRoutes,
        office: TicketOffice,
        entrance: Entrance,
        tenant_limits: TenantLimits,
        limits: ApiLimits,
        running_replicas: Callable[[], frozenset[str]],
        on_request: Callable[[], None] = lambda: None,
    ):
        """entrance, tenant_limits: those of the ingress's own API, which these requests count against. on_request:
        told of each prompt that goes direct."""
        self._router = router
        self._generation = generation
        self._addresses = addresses
        self._routes = routes
        self._office = office
        self._entrance = entrance
        self._tenant_limits = tenant_limits
        self._limits = limits
        self._running_replicas = running_replicas
        self._on_request = on_request

    def handlers(self) -> Mapping[tuple[str, str], Handler]:
        return {
            ("POST", f"/v1/chat/completions{ROUTE_SUFFIX}"): self.route_chat,
            ("POST", f"/v1/completions{ROUTE_SUFFIX}"): self.route_completion,
            ("POST", PROBE_PATH + ROUTE_SUFFIX): self.route_probe,
        }

    async def route_chat(self, request: Request) -> Response:
        """For HAProxy alone."""
        fields, context = await self._read(request)
        body, prompts = await self._generation.read_chat(fields, context)
        return self._route(self._generation.engine_requests(body, prompts, _new_id(), context), context)

    async def route_completion(self, request: Request) -> Response:
        """For HAProxy alone."""
        fields, context = await self._read(request)
        body, prompts = await self._generation.read_completion(fields)
        return self._route(self._generation.engine_requests(body, prompts, _new_id(), context), context)

    async def route_probe(self, request: Request) -> Response:
        """For HAProxy alone: any replica, nothing is reserved."""
        replica_id = next(iter(self._addresses.known), None)
        if replica_id is None:
            raise _nobody()
        return self._answer(replica_id, self._office.issue(_new_id(), replica_id))

    async def _read(self, request: Request) -> tuple[dict[str, Any], RequestContext]:
        arrival = time.monotonic()
        fields = await read_json_object(request, self._limits.max_body_bytes)
        return fields, context_of(request, fields, arrival, self._limits.request_timeout_seconds)

    def _route(self, requests: list[GenerateRequest], context: RequestContext) -> Response:
        """All choices of one body go to one replica: the best one for the first prompt."""
        first = requests[0]
        with ExitStack() as places:
            places.enter_context(self._entrance.admitted())
            if context.tenant is not None:
                places.enter_context(self._tenant_limits.admitted(context.tenant))
            try:
                decision = self._router.route(
                    route_request(first), exclude=self._running_replicas() - self._addresses.known
                )
            except NoReplicas as error:
                raise _nobody() from error
            self._routes.open(first.request_id, decision.replica_id, places.pop_all())
        for _ in requests:
            self._on_request()
        ticket = self._office.issue(
            first.request_id, decision.replica_id, decision.outcome.value, decision.predicted_hit_tokens
        )
        return self._answer(decision.replica_id, ticket)

    def _answer(self, replica_id: str, ticket: str) -> Response:
        address = self._addresses.of(replica_id)
        if address is None:
            raise _nobody()
        host, port = address
        return PlainTextResponse(f"{host} {port} {ticket}")


def _new_id() -> str:
    return f"direct-{uuid.uuid4().hex}"


def _nobody() -> ApiError:
    return ApiError(503, "No replica can be reached directly.", type=SERVER_ERROR, code="no_direct_replica")
