"""Pages of other sites: what a browser sends for them does nothing here and tells nothing, unless `--cors-origins` lets
their origin use the API."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster.api.http_app import Access, build_http_app
from cluster.api.tenants import ApiKeys, Tenant, key_hash
from tests.cluster.api.conftest import Api
from tests.cluster.openai_schema import check

JSON = {"content-type": "application/json"}
EVIL = {"origin": "http://evil.example"}
OPERATIONS = (("POST", "/admin/policy"), ("GET", "/admin/policy"), ("GET", "/debug/router"), ("GET", "/metrics"))
OTHERS = (("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/tokenize"))
KEYS = ApiKeys((Tenant(name="alpha", key_hashes=(key_hash("key-a"),)),), admin_hashes=(key_hash("key-admin"),))
Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


async def done(request: Request) -> Response:
    return JSONResponse({"done": True})


@pytest.fixture
def serve(api: Api) -> Serve:
    """The API with operations that always work. prefix: where Serve deploys it. The rest is `Access`'s."""

    @asynccontextmanager
    async def serving(prefix: str = "", **access: object) -> AsyncIterator[httpx.AsyncClient]:
        operations = dict.fromkeys((*OPERATIONS, ("GET", "/health")), done)
        app = build_http_app(
            api.generation, api.models, operations, lambda error: None, access=Access(**access)  # type: ignore[arg-type]
        )  # fmt: skip
        transport = httpx.ASGITransport(app, root_path=prefix)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
            yield client

    return serving


def refusal(response: httpx.Response, status: int, code: str | None) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
    check("ErrorResponse", response.json())


@pytest.mark.parametrize(("method", "path"), [*OPERATIONS, *OTHERS])
@pytest.mark.parametrize(
    "headers",
    [
        EVIL,
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://localhost:8000.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "origin": "http://localhost:8000"},
    ],
    ids=["origin", "sandboxed", "other port", "looks like ours", "no origin", "same site", "says it is ours"],
)
async def test_a_page_of_another_origin_is_refused(
    api: Api, serve: Serve, method: str, path: str, headers: dict[str, str]
) -> None:
    body = {"model": "small", "prompt": "hello"} if method == "POST" else None
    async with serve() as client:
        refusal(await client.request(method, path, json=body, headers=headers), 403, "foreign_origin")
    assert api.engine.requests == []


@pytest.mark.parametrize("headers", [EVIL, EVIL | {"content-type": "text/plain"}], ids=["no type", "text/plain"])
async def test_a_request_that_needs_no_preflight_computes_nothing(
    api: Api, serve: Serve, headers: dict[str, str]
) -> None:
    async with serve() as client:
        content = b'{"model":"small","prompt":"hello"}'
        refusal(await client.post("/v1/completions", content=content, headers=headers), 403, "foreign_origin")
    assert api.engine.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://localhost:8000"},
        {"origin": "http://LOCALHOST:8000"},
        {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},
        {"sec-fetch-site": "same-origin", "origin": "https://behind-a-proxy.example"},
    ],
    ids=["program", "own page", "capitals", "typed", "proxy"],
)
async def test_programs_and_own_pages_notice_nothing(serve: Serve, headers: dict[str, str]) -> None:
    async with serve(own_hosts_only=True) as client:
        for method, path in OPERATIONS:
            assert (await client.request(method, path, headers=headers)).status_code == 200


async def test_a_link_on_another_page_may_lead_here(serve: Serve) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    async with serve() as client:
        assert (await client.get("/debug/router", headers=link)).status_code == 200
        refusal(await client.post("/admin/policy", json={}, headers=link), 403, "foreign_origin")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "", "[::1", "10.0.0.1"]
)
@pytest.mark.parametrize(("method", "path"), [*OPERATIONS, ("GET", "/v1/models")])
async def test_a_name_that_its_owner_points_at_loopback_is_refused(
    serve: Serve, method: str, path: str, host: str
) -> None:
    """DNS rebinding: to the browser such a page is of our own origin, so only the name tells."""
    headers = {"host": host, "sec-fetch-site": "same-origin", "origin": f"http://{host}"}
    async with serve(own_hosts_only=True) as client:
        refusal(await client.request(method, path, headers=headers), 403, "foreign_host")
        assert (await client.get("/health", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:80", "127.3.2.1", "[::1]:8000", "a.localhost", ""]
)
async def test_names_of_this_machine_are_answered(serve: Serve, host: str) -> None:
    async with serve(own_hosts_only=True) as client:
        assert (await client.get("/admin/policy", headers={"host": host})).status_code == 200


async def test_where_others_may_reach_the_cluster_it_may_have_any_name(serve: Serve) -> None:
    async with serve(own_hosts_only=False) as client:
        assert (await client.get("/metrics", headers={"host": "warmlane.example"})).status_code == 200


@pytest.mark.parametrize("given", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
async def test_a_body_for_administration_must_say_that_it_is_json(serve: Serve, given: str | None) -> None:
    headers = {} if given is None else {"content-type": given}
    async with serve() as client:
        refusal(await client.post("/admin/policy", content=b"{}", headers=headers), 400, None)
        assert (await client.post("/admin/policy")).status_code == 200  # no body, as with reset_prefix_cache
        typed = await client.post("/admin/policy", content=b"{}", headers=JSON | {"origin": "http://localhost:8000"})
        assert typed.status_code == 200


PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
CHAT = "https://chat.example"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/tokenize"])
async def test_cors_is_off_by_default(serve: Serve, path: str) -> None:
    async with serve() as client:
        answer = await client.options(path, headers=PREFLIGHT | {"origin": CHAT})
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origins", [(CHAT, "http://localhost:3000"), ("*",)], ids=["named", "all"])
async def test_pages_of_cors_origins_may_use_the_api_with_a_key_and_read_refusals(
    serve: Serve, origins: tuple[str, ...]
) -> None:
    page = {"origin": CHAT, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
    body = {"model": "small", "prompt": "hello", "max_tokens": 1}
    async with serve(cors_origins=origins, keys=KEYS) as client:
        preflight = await client.options("/v1/completions", headers=page | PREFLIGHT)
        assert preflight.status_code == 200
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        private = page | PREFLIGHT | {"access-control-request-private-network": "true"}
        answered = await client.options("/v1/completions", headers=private)
        assert (answered.status_code, answered.headers["access-control-allow-private-network"]) == (200, "true")
        without_key = await client.post("/v1/completions", json=body, headers=page)
        assert without_key.status_code == 401
        answer = await client.post("/v1/completions", json=body, headers=page | {"authorization": "Bearer key-a"})
        assert answer.status_code == 200
    for response in (preflight, without_key, answer):
        assert response.headers["access-control-allow-origin"] in (CHAT, "*")
        assert "access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize(("method", "path"), OPERATIONS[:3])
async def test_cors_origins_open_no_administration(serve: Serve, method: str, path: str) -> None:
    async with serve(cors_origins=(CHAT,)) as client:
        preflight = await client.options(path, headers=PREFLIGHT | {"origin": CHAT})
        refusal(preflight, 403, "foreign_origin")
        refused = await client.request(method, path, json={}, headers={"origin": CHAT})
    refusal(refused, 403, "foreign_origin")
    assert "access-control-allow-origin" not in refused.headers


async def test_other_origins_stay_out_where_some_are_let_in(serve: Serve) -> None:
    async with serve(cors_origins=(CHAT,)) as client:
        refusal(await client.get("/v1/models", headers=EVIL), 403, "foreign_origin")


@pytest.mark.parametrize(("method", "path"), OPERATIONS[:3])
async def test_51_administration_needs_its_key_under_a_prefix_too(serve: Serve, method: str, path: str) -> None:
    """Serve deploys an application under any `route_prefix`; what a path is for must not depend on it."""
    async with serve("/here", keys=KEYS) as client:
        tenant = await client.request(method, f"/here{path}", headers={"authorization": "Bearer key-a"})
        refusal(tenant, 403, "admin_key_required")
        admin = await client.request(method, f"/here{path}", headers={"authorization": "Bearer key-admin"})
        assert admin.status_code == 200
    async with serve("/here", admin_open=False) as client:
        refusal(await client.request(method, f"/here{path}"), 403, "admin_key_required")


@pytest.mark.parametrize(
    "path",
    ["/%61dmin/policy", "/admin/p%6flicy", "/%2561dmin/policy", "//admin/policy", "/admin//policy", "/./admin/policy",
     "/x/../admin/policy", "/v1/../admin/policy", "/health/../admin/policy", "/metrics/../admin/policy",
     "/health/%2e%2e/admin/policy", "/health%2f..%2fadmin/policy", "/docs/%2fadmin/policy", "/admin;x/policy",
     "/admin/policy;a=b", "/admin/policy/", "/ADMIN/policy"],
)  # fmt: skip
async def test_51_no_spelling_of_a_path_leads_past_the_gate(serve: Serve, path: str) -> None:
    """What the guard reads is what the routes read: decoded once, and never normalised."""
    url = httpx.URL("http://localhost:8000")
    url._uri_reference = url._uri_reference._replace(path=path)  # httpx would normalise it
    for access in ({"keys": KEYS}, {"admin_open": False}):
        async with serve(**access) as client:
            for key in ("", "key-a"):
                response = await client.get(url, headers={"authorization": f"Bearer {key}"})
                assert response.status_code in (401, 403, 404), (path, response.text)
