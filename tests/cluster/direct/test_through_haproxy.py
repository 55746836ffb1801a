"""Requests through a real HAProxy: direct where they can, by the ingress where they cannot, and always counted."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.api.tenants import ApiKeys, Tenant, key_hash
from cluster.direct.front_door_probe import FrontDoorProbe
from cluster.haproxy_transport import find_haproxy
from cluster.readiness import NotReady
from cluster.tokenization import ChatTokenizer
from replica.errors import EngineOverloaded
from tests.cluster.direct.stage import Stage, eventually
from tests.cluster.openai_schema import check
from tests.cluster.scripted_engine import fail
from tests.cluster.small_tokenizer import write_small_tokenizer

KEYS = ApiKeys((Tenant(name="alpha", key_hashes=(key_hash("key-a"),), max_concurrent_requests=1),))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder: Path = write_small_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return ChatTokenizer(str(folder))


@pytest.fixture
async def stage(tokenizer: ChatTokenizer, request: Any) -> AsyncIterator[Stage]:
    """Parameter: the file of keys."""
    binary = find_haproxy()
    if binary is None:
        pytest.skip("no haproxy runs here")
    async with Stage(tokenizer, getattr(request, "param", None)).running(binary) as running:
        yield running


def is_at_rest(stage: Stage) -> bool:
    return not len(stage.routes) and not stage.router.status()["open_reservations"] and not stage.entrance.num_inside


async def test_an_answer_comes_from_the_replica_that_the_router_chose(stage: Stage) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "stream": True}),
    ):
        response = await stage.client.post(path, json={"model": "small", **body})
        assert response.status_code == 200, response.text
        (decision,) = list(stage.router.log)[-1:]
        assert response.headers["x-warmlane-replica"] == decision.replica_id
        assert response.headers["x-warmlane-decision-outcome"] == decision.outcome
        assert "Hel" in response.text and "lo" in response.text
        sent = stage.engines[decision.replica_id].requests[-1]
        assert len(sent.token_ids) == decision.num_tokens  # both sides read the same prompt
    assert (stage.num_direct, stage.fallbacks, stage.own_engine.requests) == (2, [], [])
    await eventually(lambda: is_at_rest(stage))


async def test_a_stream_is_reserved_and_counted_inside_until_its_end(stage: Stage) -> None:
    for engine in stage.engines.values():
        engine.hold = 1
    async with stage.client.stream(
        "POST", "/v1/completions", json={"model": "small", "prompt": "a", "stream": True}
    ) as r:
        events = r.aiter_text()
        assert "Hel" in await anext(events)  # the first token is not held back
        assert (len(stage.routes), stage.entrance.num_inside) == (1, 1)
        assert stage.router.status()["open_reservations"] == 1
        for engine in stage.engines.values():
            engine.release.set()
        assert "[DONE]" in "".join([event async for event in events])
    await eventually(lambda: is_at_rest(stage))


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_case_24_a_client_that_leaves_ends_the_work_and_the_reservation(stage: Stage, stream: bool) -> None:
    for engine in stage.engines.values():
        engine.hold = 1
    asking = asyncio.create_task(stage.complete(stream=stream))
    await eventually(lambda: any(engine.holding.is_set() for engine in stage.engines.values()))
    asking.cancel()
    await eventually(lambda: is_at_rest(stage))
    assert [engine.num_running for engine in stage.engines.values()] == [0, 0]


async def test_a_full_replica_sends_the_request_back_to_the_ingress(stage: Stage) -> None:
    for engine in stage.engines.values():
        engine.script = fail(EngineOverloaded("full"))
    response = await stage.complete()
    assert response.status_code == 200  # by the ingress, whose relay tries others
    assert (stage.num_direct, stage.fallbacks, len(stage.own_engine.requests)) == (1, ["returned"], 1)
    await eventually(lambda: is_at_rest(stage))


async def test_a_replica_that_is_gone_sends_the_request_back_to_the_ingress(stage: Stage) -> None:
    for listener in stage.listeners.values():
        await listener.close()
    assert (await stage.complete()).status_code == 200
    assert stage.fallbacks == ["returned"]
    await eventually(lambda: is_at_rest(stage))


async def test_what_cannot_be_shown_to_the_ingress_goes_through_it(stage: Stage) -> None:
    async def chunked() -> AsyncIterator[bytes]:
        yield b'{"model": "small", '
        yield b'"prompt": "hello"}'

    response = await stage.client.post(
        "/v1/completions", content=chunked(), headers={"content-type": "application/json"}
    )
    assert response.status_code == 200
    assert (stage.num_direct, stage.fallbacks, len(stage.own_engine.requests)) == (0, ["body"], 1)


async def test_a_bad_request_is_refused_as_by_any_ingress(stage: Stage) -> None:
    response = await stage.complete(temperature=9)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "temperature")
    assert stage.fallbacks == ["refused"]
    assert not any(engine.requests for engine in (*stage.engines.values(), stage.own_engine))


async def test_a_cluster_that_stops_takes_nothing_more(stage: Stage) -> None:
    stage.entrance.close()
    response = await stage.complete()
    assert (response.status_code, response.json()["error"]["code"]) == (503, "stopping")
    assert not any(engine.requests for engine in stage.engines.values())


async def test_the_port_of_a_replica_takes_nothing_that_no_ingress_sent(stage: Stage) -> None:
    body = {"model": "small", "prompt": "hello"}
    for name, listener in stage.listeners.items():
        host, port = listener.address()
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
            for ticket in ("", "none:body", "a.b", stage.office.issue("x", "another")):
                response = await client.post("/v1/completions", json=body, headers={"x-warmlane-ticket": ticket})
                assert (response.status_code, response.json()["error"]["code"]) == (403, "not_routed")
            assert (await client.get("/v1/models")).status_code == 403
        assert stage.engines[name].requests == []


async def test_clients_reach_no_inner_path_and_bring_no_ticket(stage: Stage) -> None:
    for path in ("/v1/completions/route", "/v1/chat/completions/route", "/health/direct/route"):
        response = await stage.client.post(path, json={})
        assert response.status_code == 404
        check("ErrorResponse", response.json())
    forged = {"x-warmlane-ticket": stage.office.issue("direct-1", "a")}
    assert (await stage.client.get("/v1/models", headers=forged)).status_code == 200
    assert (await stage.complete(headers=forged)).status_code == 200
    assert stage.fallbacks == []


@pytest.mark.parametrize("stage", [KEYS], indirect=True)
async def test_tenants_have_their_keys_their_space_and_their_limits(stage: Stage) -> None:
    key = {"authorization": "Bearer key-a"}
    assert (await stage.complete()).status_code == 401
    assert (await stage.complete(headers={"authorization": "Bearer wrong"})).status_code == 401
    assert stage.fallbacks == ["refused", "refused"]
    for engine in stage.engines.values():
        engine.hold = 1
    first = asyncio.create_task(stage.complete(headers=key, cache_salt="mine"))
    await eventually(lambda: any(engine.holding.is_set() for engine in stage.engines.values()))
    refused = await stage.complete(headers=key)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "concurrency_limit_exceeded")
    for engine in stage.engines.values():
        engine.release.set()
    assert (await first).status_code == 200
    (sent,) = [request for engine in stage.engines.values() for request in engine.requests]
    assert sent.extra_keys.cache_salt == "tenant:5:alpha:mine"
    await eventually(lambda: is_at_rest(stage))
    assert (await stage.complete(headers=key)).status_code == 200  # its place is free again


async def test_readiness_waits_for_a_request_that_went_direct(stage: Stage) -> None:
    probe = FrontDoorProbe(f"http://127.0.0.1:{stage.port}")
    stage.addresses.follow(frozenset())
    with pytest.raises(NotReady, match="no request goes direct yet"):
        await probe.check()
    stage.addresses.follow(frozenset("ab"))
    await eventually(lambda: stage.addresses.known == {"a", "b"})
    await probe.check()
    assert (stage.num_direct, stage.fallbacks) == (0, [])  # nobody's request


async def test_a_request_that_is_late_says_so(stage: Stage) -> None:
    """The deadline is counted by the replica that answers."""
    before = time.time()
    await stage.complete(headers={"x-request-timeout-seconds": "7"})
    (sent,) = [request for engine in stage.engines.values() for request in engine.requests]
    assert sent.deadline_seconds is not None and before + 7 <= sent.deadline_seconds <= time.time() + 7
