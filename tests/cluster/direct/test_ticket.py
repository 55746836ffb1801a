"""Only what an ingress of this cluster signed, for this replica and lately, is let in."""

import pytest

from cluster.direct.ticket import TICKET_SECONDS, BadTicket, TicketOffice, reason_without

SECRET = b"0123456789abcdef"


def test_a_ticket_tells_the_decision_and_fits_into_a_header() -> None:
    office = TicketOffice(SECRET, lambda: 1000.0)
    value = office.issue("direct-1", "replica-a", "warm", 48)
    ticket = office.check(value, "replica-a")
    assert (ticket.ticket_id, ticket.replica_id, ticket.outcome) == ("direct-1", "replica-a", "warm")
    assert ticket.predicted_hit_tokens == 48
    assert value.isascii() and not set(value) & set(' "\r\n\t')  # the Lua script takes it as one word


def test_a_ticket_is_for_one_replica_and_for_a_minute() -> None:
    now = [1000.0]
    office = TicketOffice(SECRET, lambda: now[0])
    value = office.issue("direct-1", "replica-a")
    with pytest.raises(BadTicket, match="another replica"):
        office.check(value, "replica-b")
    now[0] += TICKET_SECONDS + 1
    with pytest.raises(BadTicket, match="expired"):
        office.check(value, "replica-a")
    assert office.read(value).ticket_id == "direct-1"  # its route can still be ended


@pytest.mark.parametrize("value", ["", ".", "none:body", "a.b", "\u00e9.\u00e9", "e30.00", "x" * 5000])
def test_what_is_not_signed_is_refused(value: str) -> None:
    with pytest.raises(BadTicket):
        TicketOffice(SECRET).read(value)


def test_neither_another_secret_nor_another_text_will_do() -> None:
    value = TicketOffice(SECRET).issue("direct-1", "replica-a")
    with pytest.raises(BadTicket, match="not signed"):
        TicketOffice(b"fedcba9876543210").read(value)
    payload, _, proof = TicketOffice(SECRET).issue("direct-2", "replica-a").partition(".")
    with pytest.raises(BadTicket, match="not signed"):
        TicketOffice(SECRET).read(f"{payload}.{value.partition('.')[2]}")
    with pytest.raises(BadTicket, match="not signed"):
        TicketOffice(SECRET).read(f"{payload}.{proof[:-1]}")


@pytest.mark.parametrize(
    ("value", "reason"), [("none:body", "body"), ("none:refused", "refused"), ("none:x", "unknown"), ("ab.cd", None)]
)
def test_haproxy_says_why_it_has_no_ticket(value: str, reason: str | None) -> None:
    assert reason_without(value) == reason
