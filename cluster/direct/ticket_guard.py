"""Lets into a replica's own HTTP port only what an ingress has routed there."""

import logging
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.errors import ApiError
from cluster.direct.progress import Stage
from cluster.direct.ticket import TICKET_HEADER, BadTicket, Ticket, TicketOffice

logger = logging.getLogger(__name__)


class TicketGuard:
    """ASGI application around the replica's API: checks the ticket, tells how far its request has come, and writes the
    routing decision into the answer's headers.

    A refusal for lack of room (429) leaves as 503, which is what HAProxy sends again, to an ingress; that one tries
    another replica and in the end answers 429 itself. With nobody left to ask, the client gets the 503.
    """

    def __init__(self, app: ASGIApp, office: TicketOffice, replica_id: str, note: Callable[[str, Stage], None]):
        """note: told the ticket's id and the stage."""
        self._app = app
        self._office = office
        self._replica_id = replica_id
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            ticket = self._office.check(Headers(scope=scope).get(TICKET_HEADER, ""), self._replica_id)
        except BadTicket as error:
            logger.warning("refused a request that no ingress has sent: %s", error)
            refusal = ApiError(403, "This port takes only what the cluster's own entrance sends.", code="not_routed")
            await refusal.response()(scope, receive, send)
            return
        self._note(ticket.ticket_id, Stage.BEGUN)
        try:
            await self._app(scope, receive, self._watched(ticket, send))
        finally:
            self._note(ticket.ticket_id, Stage.ENDED)

    def _watched(self, ticket: Ticket, send: Send) -> Send:
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                if message["status"] == 429:
                    message["status"] = 503
                headers = MutableHeaders(scope=message)
                headers["x-warmlane-replica"] = ticket.replica_id
                headers["x-warmlane-decision-outcome"] = ticket.outcome
                headers["x-warmlane-predicted-hit-tokens"] = str(ticket.predicted_hit_tokens)
            elif not has_begun and message.get("body"):
                has_begun = True
                self._note(ticket.ticket_id, Stage.FIRST_TOKEN)
            await send(message)

        return watched
