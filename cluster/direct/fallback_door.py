"""Counts the requests for text that came to the ingress though they should have gone to a replica."""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.gate import TEXT_PATHS
from cluster.direct.ticket import TICKET_HEADER, BadTicket, TicketOffice, reason_without


class FallbackDoor:
    """ASGI middleware of an ingress behind HAProxy. What comes back with a ticket ends its route before it is routed
    anew. Reasons: `returned` (the replica could not be reached, was full, or died before it said a byte), those of
    `cluster.direct.ticket.REASONS`, and `unasked` where HAProxy has not got our rules."""

    def __init__(
        self, app: ASGIApp, office: TicketOffice, end_route: Callable[[str], None], on_fallback: Callable[[str], None]
    ):
        """end_route: takes a ticket's id. on_fallback: takes the reason."""
        self._app = app
        self._office = office
        self._end_route = end_route
        self._on_fallback = on_fallback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in TEXT_PATHS:
            self._count(Headers(scope=scope).get(TICKET_HEADER, ""))
        await self._app(scope, receive, send)

    def _count(self, value: str) -> None:
        reason = reason_without(value)
        if reason is None:
            try:
                self._end_route(self._office.read(value).ticket_id)
                reason = "returned"
            except BadTicket:
                reason = "unasked"
        self._on_fallback(reason)
