"""An ingress's part in direct streaming: it routes what HAProxy asks about, and sees to what comes back."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from cluster.api.entrance import Entrance
from cluster.api.generation_api import GenerationApi
from cluster.api.http_app import Handler
from cluster.api.limits import ApiLimits
from cluster.api.tenant_limits import TenantLimits
from cluster.direct.fallback_door import FallbackDoor
from cluster.direct.open_routes import OpenRoutes
from cluster.direct.progress import Progress
from cluster.direct.replica_addresses import ReplicaAddresses
from cluster.direct.route_api import RouteApi
from cluster.direct.ticket import TicketOffice
from cluster.ingress_metrics import IngressMetrics
from router.prefix_router import PrefixRouter
from router.running_set import RUNNING_SET

_GRACE_SECONDS = 60.0
"""An engine ends a request at its deadline; the report of it may take some time more."""


class DirectStreaming:
    """Made in the event loop that will serve the requests."""

    def __init__(
        self, replica_handle: Any, secret: bytes, router: PrefixRouter, limits: ApiLimits, metrics: IngressMetrics
    ):
        """replica_handle: Serve handle of DirectReplicas. secret: the cluster's."""
        self._router = router
        self._limits = limits
        self._metrics = metrics
        self._office = TicketOffice(secret)
        self._addresses = ReplicaAddresses(replica_handle)
        self._routes = OpenRoutes(router, limits.request_timeout_seconds + _GRACE_SECONDS)
        loop = asyncio.get_running_loop()

        def on_replicas(replica_ids: frozenset[str]) -> None:  # in the thread of Ray's router
            loop.call_soon_threadsafe(self._follow, replica_ids)

        self._unsubscribe: Callable[[], None] = RUNNING_SET.subscribe(on_replicas)
        loop.call_soon(self._follow, RUNNING_SET.replicas)

    def handlers(
        self, generation: GenerationApi, entrance: Entrance, tenant_limits: TenantLimits
    ) -> Mapping[tuple[str, str], Handler]:
        """What HAProxy asks. All arguments are those of the ingress's own API."""
        routes = RouteApi(
            self._router,
            generation,
            self._addresses,
            self._routes,
            self._office,
            entrance,
            tenant_limits,
            self._limits,
            lambda: RUNNING_SET.replicas,
            lambda: self._metrics.count_transport("direct"),
        )
        return routes.handlers()

    def wrap(self, app: FastAPI, paths: Mapping[tuple[str, str], Handler]) -> None:
        """paths: those of `handlers`, which clients are not told of."""
        for route in app.routes:
            if isinstance(route, APIRoute) and ("POST", route.path) in paths:
                route.include_in_schema = False
        app.add_middleware(
            FallbackDoor,
            office=self._office,
            end_route=self._routes.end,
            on_fallback=self._metrics.count_direct_fallback,
        )

    def progress(self, report: Progress) -> None:
        """A replica tells how far its requests have come."""
        self._routes.progress(report)

    def tend(self) -> None:
        """Ends what must be over by now."""
        self._routes.tend()

    def stop(self) -> None:
        self._unsubscribe()

    def _follow(self, replica_ids: frozenset[str]) -> None:
        self._addresses.follow(replica_ids)
        self._routes.follow(replica_ids)
