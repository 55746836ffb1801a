"""A cluster that stops: what is being answered ends well, what comes is refused and told when to come again."""

import asyncio

import httpx
import pytest

from cluster.api.admission import Drain
from cluster.api.errors import ApiError
from cluster.api.http_app import Access, build_http_app
from tests.cluster.api.conftest import Api
from tests.cluster.openai_schema import check


async def test_a_drain_refuses_requests_for_text_alone(api: Api) -> None:
    drain = Drain()
    app = build_http_app(api.generation, api.models, {}, api.failures.append, access=Access(drain=drain))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://warmlane") as client:
        body = {"model": "small", "prompt": "hello"}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        drain.begin()
        response = await client.post("/v1/completions", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "stopping")
        assert int(response.headers["retry-after"]) > 0
        check("ErrorResponse", response.json())
        assert (await client.get("/v1/models")).status_code == 200
    assert len(api.failures) == 1  # counted as a request that was refused
    assert drain.num_in_flight == 0


async def test_what_is_in_flight_is_counted_until_the_end_whatever_happens() -> None:
    drain, leave = Drain(), asyncio.Event()

    async def visit(error: Exception | None) -> None:
        with drain.admitted():
            await leave.wait()
            if error is not None:
                raise error

    visits = [asyncio.create_task(visit(error)) for error in (None, ValueError("broken"), None)]
    await asyncio.sleep(0)
    assert drain.num_in_flight == 3
    visits[2].cancel()
    drain.begin()
    with pytest.raises(ApiError, match="stopping"), drain.admitted():
        pass
    leave.set()
    await asyncio.gather(*visits, return_exceptions=True)
    assert drain.num_in_flight == 0
