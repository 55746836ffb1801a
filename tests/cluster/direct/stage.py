"""Everything of direct streaming but Ray and the model: real HAProxy, a real router, and APIs over scripted engines."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from cluster.api.entrance import Entrance
from cluster.api.generation_api import GenerationApi, ServedModel
from cluster.api.http_app import Access, build_http_app
from cluster.api.limits import ApiLimits
from cluster.api.model_api import ModelApi
from cluster.api.prompt_reader import PromptReader
from cluster.api.tenant_limits import TenantLimits
from cluster.api.tenants import ApiKeys, without_limits
from cluster.direct.direct_replica import PROBE_PATH, answer_probe
from cluster.direct.fallback_door import FallbackDoor
from cluster.direct.http_listener import HttpListener
from cluster.direct.open_routes import OpenRoutes
from cluster.direct.replica_addresses import ReplicaAddresses
from cluster.direct.route_api import RouteApi
from cluster.direct.ticket import TicketOffice
from cluster.direct.ticket_guard import TicketGuard
from cluster.free_ports import FreePorts
from cluster.haproxy_transport import haproxy_environment
from cluster.tokenization import ChatTokenizer
from tests.cluster.scripted_engine import ScriptedEngine
from tests.cluster.scripted_replicas import SECRET, router_over

CONFIGURATION = """global
    stats socket {folder}/a mode 666 level admin
    tune.bufsize 16384
defaults
    mode http
    option abortonclose
    option redispatch 1
    retry-on conn-failure
    timeout client 60s
    timeout connect 5s
    timeout server 60s
    balance leastconn
frontend http_frontend
    bind 127.0.0.1:{port}
    acl is_http-app path_beg /
    use_backend http-app if is_http-app
backend http-app
    server ingress 127.0.0.1:{ingress} check
    server fallback 127.0.0.1:{fallback} check backup
"""
"""The parts of Ray's own configuration that matter here."""


class Stage:
    """Replicas `a` and `b`, one ingress, HAProxy before them. `fallbacks` holds the reasons that were counted."""

    def __init__(self, tokenizer: ChatTokenizer, keys: ApiKeys | None) -> None:
        self.engines = {name: ScriptedEngine() for name in "ab"}
        self.own_engine = ScriptedEngine()
        """What the ingress has where a request did not go direct."""
        self.router = router_over("a", "b")
        self.limits = ApiLimits()
        self.entrance = Entrance()
        self.fallbacks: list[str] = []
        self.num_direct = 0
        self.routes = OpenRoutes(self.router, longest_seconds=600.0)
        self.office = TicketOffice(SECRET)
        self._tokenizer, self._keys = tokenizer, keys
        self.listeners = {name: HttpListener(self._replica_app(name), "127.0.0.1") for name in "ab"}
        self.addresses = ReplicaAddresses(self)
        self._ingress = HttpListener(self._ingress_app(), "127.0.0.1")
        self.port = FreePorts()()
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=30.0)

    def options(self, method_name: str) -> "Stage":
        """The replicas' handle, which is asked for addresses alone."""
        return self

    def remote(self, route_to: str) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(self.listeners[route_to].address())
        return future

    async def complete(self, prompt: str = "hello", **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", {})
        body = {"model": "small", "prompt": prompt, **fields}
        return await self.client.post("/v1/completions", json=body, headers=headers)

    def _generation(self, engine: ScriptedEngine) -> tuple[GenerationApi, ModelApi]:
        model = ServedModel(name="small", fingerprint="f" * 32, max_model_len=256, created=1)
        reader = PromptReader(self._tokenizer, 256, observe_seconds=lambda seconds: None)
        generation = GenerationApi(model, reader, engine.open, self.limits, lambda error: None)
        return generation, ModelApi(model, reader, self.limits)

    def _replica_app(self, name: str) -> TicketGuard:
        keys = None if self._keys is None else without_limits(self._keys)
        app = build_http_app(
            *self._generation(self.engines[name]), {("POST", PROBE_PATH): answer_probe}, lambda error: None,
            access=Access(keys=keys),
        )  # fmt: skip
        return TicketGuard(app, self.office, name, lambda ticket_id, stage: self.routes.progress({ticket_id: stage}))

    def _ingress_app(self) -> FastAPI:
        generation, models = self._generation(self.own_engine)
        tenant_limits = TenantLimits()
        paths = RouteApi(
            self.router, generation, self.addresses, self.routes, self.office, self.entrance, tenant_limits,
            self.limits, lambda: frozenset("ab"), self._count_direct,
        ).handlers()  # fmt: skip
        access = Access(keys=self._keys, limits=tenant_limits, entrance=self.entrance)
        app = build_http_app(generation, models, paths, lambda error: None, access=access)
        app.add_middleware(
            FallbackDoor, office=self.office, end_route=self.routes.end, on_fallback=self.fallbacks.append
        )
        return app

    def _count_direct(self) -> None:
        self.num_direct += 1

    @asynccontextmanager
    async def running(self, binary: str) -> AsyncIterator["Stage"]:
        with tempfile.TemporaryDirectory(prefix="wlc-", dir="/tmp") as path:  # short: sockets end at 97 characters
            folder, ports = Path(path), FreePorts()
            environment = haproxy_environment(binary, "127.0.0.1", folder, ports, direct=True)
            configuration = folder / "haproxy.cfg"
            _, ingress = self._ingress.address()
            configuration.write_text(
                CONFIGURATION.format(folder=folder, port=self.port, ingress=ingress, fallback=ports())
            )
            command = [environment["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f", str(configuration)]
            haproxy = await asyncio.create_subprocess_exec(
                *command, stderr=asyncio.subprocess.DEVNULL, env=os.environ | environment
            )
            try:
                self.addresses.follow(frozenset("ab"))
                await self._wait_up()
                yield self
            finally:
                await self.client.aclose()
                haproxy.terminate()
                await haproxy.wait()
                for listener in (self._ingress, *self.listeners.values()):
                    await listener.close()

    async def _wait_up(self) -> None:
        deadline = time.monotonic() + 20.0
        while self.addresses.known != {"a", "b"} or not await self._answers():
            assert time.monotonic() < deadline, "HAProxy did not come up"
            await asyncio.sleep(0.02)

    async def _answers(self) -> bool:
        try:
            return (await self.client.get("/v1/models")).status_code in (200, 401)
        except httpx.HTTPError:
            return False


async def eventually(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is polled is at the other end
            await asyncio.sleep(0.005)
