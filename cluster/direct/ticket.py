"""What an ingress signs and a replica checks: this request was routed, and to this replica."""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from cluster.haproxy_launcher import TICKET_HEADER

__all__ = ["TICKET_HEADER", "TICKET_SECONDS", "BadTicket", "Ticket", "TicketOffice", "reason_without"]

TICKET_SECONDS = 60.0
"""HAProxy uses a ticket within milliseconds; the clocks of machines may differ by more."""
NO_TICKET = "none:"
REASONS = frozenset({"body", "refused", "unanswered"})
"""Why HAProxy has no ticket: the body cannot be shown to an ingress, none answered, or the one that did said no."""
_KEY_PURPOSE = b"warmlane direct ticket"


class BadTicket(ValueError):
    """Not signed by an ingress of this cluster, too old, or for another replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One routing decision. ticket_id: the reservation's id. expires_at: seconds since the epoch.

    outcome, predicted_hit_tokens: as in `router.decision.Decision`; empty and 0 for a probe.
    """

    ticket_id: str
    replica_id: str
    expires_at: float
    outcome: str = ""
    predicted_hit_tokens: int = 0


class TicketOffice:
    """Signs and checks with the cluster's secret. A ticket admits no tenant: keys are checked wherever it leads."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time):
        """clock: seconds since the epoch."""
        self._key = hmac.digest(secret, _KEY_PURPOSE, hashlib.sha256)
        self._clock = clock

    def issue(self, ticket_id: str, replica_id: str, outcome: str = "", predicted_hit_tokens: int = 0) -> str:
        """A header's value, without blanks and quotes."""
        ticket = Ticket(
            ticket_id=ticket_id,
            replica_id=replica_id,
            expires_at=self._clock() + TICKET_SECONDS,
            outcome=outcome,
            predicted_hit_tokens=predicted_hit_tokens,
        )
        payload = base64.urlsafe_b64encode(msgspec.msgpack.encode(ticket))
        return f"{payload.decode()}.{self._proof(payload)}"

    def read(self, value: str) -> Ticket:
        """Raises BadTicket for what no ingress has signed, however old."""
        payload, _, proof = value.partition(".")
        if not value.isascii() or not hmac.compare_digest(self._proof(payload.encode()), proof):
            raise BadTicket("the ticket is not signed by this cluster")
        try:
            return msgspec.msgpack.decode(base64.urlsafe_b64decode(payload), type=Ticket)
        except (binascii.Error, msgspec.DecodeError) as error:
            raise BadTicket("the ticket is of another version") from error

    def check(self, value: str, replica_id: str) -> Ticket:
        """What `read` gives, if it leads to this replica now. Raises BadTicket."""
        ticket = self.read(value)
        if ticket.replica_id != replica_id:
            raise BadTicket("the ticket is for another replica")
        if ticket.expires_at < self._clock():
            raise BadTicket("the ticket has expired")
        return ticket

    def _proof(self, payload: bytes) -> str:
        return hmac.digest(self._key, payload, hashlib.sha256).hex()


def reason_without(value: str) -> str | None:
    """Why there is no ticket, by the header's value; None where there is one."""
    if not value.startswith(NO_TICKET):
        return None
    reason = value.removeprefix(NO_TICKET)
    return reason if reason in REASONS else "unknown"
