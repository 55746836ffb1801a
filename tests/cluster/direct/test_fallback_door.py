"""Only what should have gone to a replica counts as a fallback."""

from typing import Any

import httpx
import pytest

from cluster.direct.fallback_door import FallbackDoor
from cluster.direct.ticket import TICKET_HEADER, TicketOffice


async def empty_answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def ask(path: str, headers: dict[str, str] | None = None) -> tuple[list[str], list[str]]:
    """The routes that were ended and the fallbacks that were counted."""
    ended: list[str] = []
    counted: list[str] = []
    door = FallbackDoor(empty_answer, TicketOffice(b"s" * 32), ended.append, counted.append)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(door), base_url="http://warmlane") as client:
        await client.post(path, headers=headers)
    return ended, counted


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_request_for_text_is_ended_and_counted(path: str) -> None:
    ticket = TicketOffice(b"s" * 32).issue("t1", "replica-1")
    assert await ask(path, {TICKET_HEADER: ticket}) == (["t1"], ["returned"])
    assert await ask(path, {TICKET_HEADER: "none:body"}) == ([], ["body"])
    assert await ask(path) == ([], ["unasked"])


@pytest.mark.parametrize("path", ["/v1/explain", "/tokenize", "/detokenize", "/metrics"])
async def test_what_never_goes_direct_is_no_fallback(path: str) -> None:
    assert await ask(path) == ([], [])
