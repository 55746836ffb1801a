"""Sessions reach the router, by header or by the official field."""

import time

import pytest

from cluster.serving.relay import RelaySettings, RequestRelay
from cluster.serving.transport.transports import HandleTransport
from replica.messages import GenerateRequest
from replica.sampling_params import SamplingParams
from tests.cluster.api.conftest import Api
from tests.cluster.serving.scripted_replicas import ScriptedReplicas, answer, router_over


@pytest.mark.parametrize(
    ("headers", "fields", "session_id"),
    [
        ({}, {}, None),
        ({"X-Session-Id": "alice"}, {}, "alice"),
        ({}, {"prompt_cache_key": "bob"}, "bob"),
        ({"X-Session-Id": "alice"}, {"prompt_cache_key": "bob"}, "alice"),
        ({"X-Session-Id": ""}, {"prompt_cache_key": ""}, None),
        ({}, {"prompt_cache_key": 7}, None),
        ({"X-Session-Id": "x" * 300}, {}, "x" * 256),
    ],
)
async def test_each_choice_carries_the_session(
    api: Api, headers: dict[str, str], fields: dict[str, object], session_id: str | None
) -> None:
    chat = {"model": "small", "messages": [{"role": "user", "content": "hello"}], "n": 2, **fields}
    completion = {"model": "small", "prompt": ["hello", "world"], **fields}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", completion)):
        response = await api.client.post(path, json=body, headers=headers)
        assert response.status_code == 200
    assert [request.session_id for request in api.engine.requests] == [session_id] * 4


async def test_the_relay_routes_by_it() -> None:
    names = ("a", "b", "c", "d")
    router = router_over(*names)
    router.set_policy("session_hash", {})
    replicas = ScriptedReplicas({name: answer("x") for name in names})
    relay = RequestRelay(router, HandleTransport(replicas), RelaySettings())
    for turn in range(6):
        request = GenerateRequest(
            f"r{turn}", [turn] * 9, SamplingParams(max_tokens=5), time.monotonic(), session_id="alice"
        )
        await relay.open(request).collect()
    assert len({replica_id for replica_id, _ in replicas.calls}) == 1
