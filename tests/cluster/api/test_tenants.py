"""API keys: who gets in, how often, and that nobody reaches another tenant's pages (51, A32)."""

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.api.errors import ApiError
from cluster.api.http_app import Access, build_http_app
from cluster.api.tenant_limits import TenantLimits
from cluster.api.tenants import ApiKeys, Tenant, key_hash, read_api_keys
from cluster.commands.key import run as make_key
from tests.cluster.api.conftest import Api
from tests.cluster.openai_schema import check

KEYS = ApiKeys(
    (
        Tenant(name="alpha", key_hashes=(key_hash("key-a"), key_hash("key-a2"))),
        Tenant(name="beta", key_hashes=(key_hash("key-b"),), requests_per_minute=3, max_concurrent_requests=1),
    ),
    admin_hashes=(key_hash("key-admin"),),
)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
async def guarded(api: Api) -> Any:
    """The scripted API with keys in front."""

    def client(keys: ApiKeys | None = KEYS, admin_open: bool = True) -> httpx.AsyncClient:
        app = build_http_app(
            api.generation, api.models,
            {("POST", "/admin/reset"): api.models.models, ("GET", "/health"): api.models.models},
            api.failures.append, access=Access(keys=keys, admin_open=admin_open),
        )  # fmt: skip
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://warmlane")

    return client


BODY = {"model": "small", "prompt": "hello"}


@pytest.mark.parametrize(
    "headers", [{}, bearer(""), bearer("wrong"), {"authorization": "Basic key-a"}, bearer("KEY-A")]
)
async def test_no_key_no_answer(guarded: Any, api: Api, headers: dict[str, str]) -> None:
    async with guarded() as client:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/nothing"):
            response = await client.post(path, json=BODY, headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
            check("ErrorResponse", response.json())
        assert (await client.get("/v1/models", headers=headers)).status_code == 401
        assert (await client.get("/health")).status_code == 200
    assert api.engine.requests == []
    assert len(api.failures) == 2  # requests for text that were refused are counted


async def test_51_a32_each_key_has_its_tenants_salt_and_sessions_whatever_salt_the_caller_makes_up(
    guarded: Any, api: Api
) -> None:
    asked = (("key-a", None), ("key-a2", None), ("key-a", "its own"), ("key-b", None), ("key-b", "tenant:5:alpha:"))
    async with guarded() as client:
        for key, salt in asked:
            headers = bearer(key) | {"x-session-id": "s"}
            response = await client.post("/v1/completions", json={**BODY, "cache_salt": salt}, headers=headers)
            assert response.status_code == 200
    salts = [request.extra_keys.cache_salt for request in api.engine.requests]
    assert salts == [
        "tenant:5:alpha:", "tenant:5:alpha:", "tenant:5:alpha:its own", "tenant:4:beta:",
        "tenant:4:beta:tenant:5:alpha:",
    ]  # fmt: skip
    assert [request.session_id for request in api.engine.requests] == ["alpha/s"] * 3 + ["beta/s"] * 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_51_nobody_is_faster_for_what_another_tenant_said(guarded: Any, api: Api, path: str) -> None:
    """Turns that were tokenised before are known within one tenant's space alone."""
    encoder = api.models._tokenizer._chat_encoder
    messages = [{"role": "user", "content": f"what {path} is told once"}]
    tokenised = []
    async with guarded() as client:
        for key in ("key-a", "key-b", "key-a2", "key-b"):
            before = encoder.num_encoded_characters
            body = {"model": "small", "messages": messages}
            assert (await client.post(path, json=body, headers=bearer(key))).status_code == 200
            tokenised.append(encoder.num_encoded_characters - before)
    assert tokenised == [tokenised[0], tokenised[0], 0, 0]
    assert tokenised[0] > len(messages[0]["content"])


async def test_administration_needs_an_admin_key(guarded: Any) -> None:
    async with guarded() as client:
        for key, status in (("key-a", 403), ("wrong", 401), ("key-admin", 200)):
            assert (await client.post("/admin/reset", headers=bearer(key))).status_code == status
        refusal = await client.post("/v1/completions", json=BODY, headers=bearer("key-admin"))
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (403, "tenant_key_required")
    async with guarded(keys=None, admin_open=False) as client:
        assert (await client.post("/admin/reset")).status_code == 403
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200
    async with guarded(keys=None) as client:
        assert (await client.post("/admin/reset")).status_code == 200


async def test_a_tenant_that_asks_too_often_is_told_when_to_come_back(guarded: Any, api: Api) -> None:
    async with guarded() as client:
        answers = [await client.post("/v1/completions", json=BODY, headers=bearer("key-b")) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert answers[3].json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(answers[3].headers["retry-after"]) <= 30
        check("ErrorResponse", answers[3].json())
        assert (await client.post("/v1/completions", json=BODY, headers=bearer("key-a"))).status_code == 200
    assert len(api.engine.requests) == 4


async def test_what_costs_without_answering_counts_too(guarded: Any, api: Api) -> None:
    async with guarded() as client:
        answers = [await client.post("/tokenize", json=BODY, headers=bearer("key-b")) for _ in range(4)]
        models = await client.get("/v1/models", headers=bearer("key-b"))
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert models.status_code == 200
    assert api.failures == []  # `warmlane_requests_total` counts requests for text


def test_limits_fill_up_over_time_and_are_shared_out() -> None:
    now = [0.0]
    limits = TenantLimits(num_ingresses=2, clock=lambda: now[0])
    tenant = Tenant(name="t", key_hashes=(), requests_per_minute=120, max_concurrent_requests=3)
    for _ in range(60):
        with limits.admitted(tenant):
            pass
    with pytest.raises(ApiError) as info, limits.admitted(tenant):
        pass
    assert (info.value.status, info.value.retry_after_seconds) == (429, 1.0)
    now[0] = 2.0
    with limits.admitted(tenant), limits.admitted(tenant):
        with pytest.raises(ApiError) as info, limits.admitted(tenant):
            pass
        assert info.value.code == "concurrency_limit_exceeded"
    now[0] = 1000.0
    for _ in range(60):
        with limits.admitted(tenant):
            pass
    with pytest.raises(ApiError), limits.admitted(tenant):
        pass


async def test_a_slot_is_held_until_the_answer_has_ended(guarded: Any, api: Api) -> None:
    """Also where the engine fails, the slot comes back."""
    keys = ApiKeys((Tenant(name="one", key_hashes=(key_hash("key-1"),), max_concurrent_requests=1),))
    async with guarded(keys) as client:
        for _ in range(3):
            assert (await client.post("/v1/completions", json=BODY, headers=bearer("key-1"))).status_code == 200
            bad = await client.post("/v1/completions", json={"model": "other", "prompt": "x"}, headers=bearer("key-1"))
            assert bad.status_code == 404


def test_the_file_of_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.yaml"
    make_key(type("Args", (), {"tenant": "gamma"})())
    printed = capsys.readouterr().out
    file.write_text(printed)
    key = printed.splitlines()[0].rpartition(" ")[2]
    found, is_admin = read_api_keys(file).find(key)
    assert found is not None
    assert (found.name, is_admin) == ("gamma", False)
    assert key not in repr(read_api_keys(file))
    assert found.key_hashes[0] not in repr(read_api_keys(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "keys.yaml must be a mapping"),
        ("tenants: 3", "must be a list"),
        ("keys: []", "unknown setting 'keys'"),
        ("tenants: [{name: a, key_sha256: abc}]", "64 hex digits"),
        ("tenants: [{name: 'a b', key_sha256: []}]", "keys.yaml: a tenant's name must have"),
        (f"tenants: [{{name: a, key_sha256: '{'0' * 64}', requests_per_minute: 0}}]", "requests_per_minute"),
        ("tenants: [{name: a}, {name: a}]", "twice"),
        ("admin_key_sha256: x", "admin_key_sha256"),
        ("{", "line 1, column 2: while parsing"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_api_keys(file)


async def test_nothing_secret_is_logged(guarded: Any, api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret_body = {"model": "small", "prompt": "my secret words", "cache_salt": "my salt"}
    async with guarded() as client:
        await client.post("/v1/completions", json=secret_body, headers=bearer("key-a"))
        await client.post("/v1/completions", json={**secret_body, "n": 0}, headers=bearer("key-wrong"))
        await client.post("/v1/completions", json={**secret_body, "n": 0}, headers=bearer("key-a"))
    for secret in ("key-a", "key-wrong", "secret words", "my salt"):
        assert secret not in caplog.text
