"""What the headers and the hints of a request become: deadline, session, priority."""

import time

import pytest

from tests.cluster.api.conftest import Api
from tests.cluster.openai_schema import check

BODY = {"model": "small", "prompt": "hello"}


@pytest.mark.parametrize("name", ["x-request-timeout-seconds", "x-warmlane-timeout-seconds"])
@pytest.mark.parametrize(("given", "seconds"), [(None, 600.0), ("2.5", 2.5), ("100000", 600.0)])
async def test_53_a_client_may_ask_for_less_time_than_the_limit(
    api: Api, name: str, given: str | None, seconds: float
) -> None:
    """HAProxy hands the header on under the other name."""
    headers = {name: given} if given else {}
    before = time.monotonic()
    assert (await api.client.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
    (request,) = api.engine.requests
    after = time.monotonic()
    assert before <= request.arrival_seconds <= after
    assert request.deadline_seconds == pytest.approx(request.arrival_seconds + seconds)


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan", "inf", "1e999", "", "1_0", "2,5"])
async def test_a_malformed_timeout_is_refused(api: Api, given: str) -> None:
    headers = {"x-request-timeout-seconds": given}
    response = await api.client.post("/v1/completions", json=BODY, headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-request-timeout-seconds")
    check("ErrorResponse", response.json())
    assert api.engine.requests == []


async def test_priority_and_session_reach_the_engine_and_the_router(api: Api) -> None:
    await api.complete(priority=-3, prompt_cache_key="talk 1", user="u")
    await api.chat()
    first, second = api.engine.requests
    assert (first.priority, first.session_id) == (-3, "talk 1")
    assert (second.priority, second.session_id) == (0, None)


@pytest.mark.parametrize("priority", [1.5, "1", 2**31, True])
async def test_a_priority_is_a_whole_number(api: Api, priority: object) -> None:
    response = await api.complete(priority=priority)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "priority")
