"""Health that is proven, decisions that are listed, and failures that are counted once."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from cluster.api.engine_call import NoReplicaAvailable, ReplicaLost, RequestTimedOut
from cluster.api.errors import bad_request
from cluster.api.failures import EngineFailure
from cluster.api.generation_api import GenerationApi, ServedModel
from cluster.api.http_app import build_http_app
from cluster.api.ingress_metrics import IngressMetrics
from cluster.api.limits import ApiLimits
from cluster.api.model_api import ModelApi
from cluster.api.prompt_reader import PromptReader
from cluster.serving.cluster_scrape import ClusterScrape
from cluster.serving.operations_api import OperationsApi
from cluster.serving.readiness import Readiness
from cluster.serving.relay import RelaySettings, RequestRelay
from cluster.serving.transport.transports import HandleTransport
from cluster.text.tokenization import ChatTokenizer
from replica.errors import EngineOverloaded, RequestRefused
from router.prefix_router import PrefixRouter
from tests.cluster.openai_schema import check
from tests.cluster.serving.scripted_replicas import ScriptedReplicas, answer, router_over
from tests.router.routers import ManualClock
from tests.waiting import BOUND_SECONDS, eventually, let_time_pass

WINDOW = 256


class DescribeCall:
    def __init__(self, replicas: "Describing"):
        self._replicas = replicas

    def __await__(self) -> Any:
        return self._answer().__await__()

    async def _answer(self) -> dict[str, str]:
        if self._replicas.failure == "hangs":
            await asyncio.Event().wait()
        if self._replicas.failure is not None:
            raise RuntimeError(self._replicas.failure)
        return {}

    def cancel(self) -> None:
        self._replicas.num_cancelled += 1


class Describing:
    """The replicas' handle where it is asked who they are."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failure: str | None = None
        self.num_cancelled = 0

    def options(self, method_name: str) -> "Describing":
        return self

    def remote(self, route_to: str) -> DescribeCall:
        self.asked.append(route_to)
        return DescribeCall(self)


@dataclass
class Operations:
    client: httpx.AsyncClient
    router: PrefixRouter
    replicas: ScriptedReplicas
    describing: Describing
    running: set[str]
    clock: ManualClock


@pytest.fixture
async def operations(tokenizer: ChatTokenizer) -> AsyncIterator[Operations]:
    router, replicas = router_over("a", "b"), ScriptedReplicas({"a": answer("x"), "b": answer("y")})
    describing, running, clock = Describing(), {"a", "b"}, ManualClock()
    limits = ApiLimits()
    model = ServedModel(name="small", fingerprint="f" * 32, max_model_len=WINDOW, created=1)
    readiness = Readiness(router, describing, lambda: frozenset(running), timeout_seconds=BOUND_SECONDS, clock=clock)
    relay = RequestRelay(router, HandleTransport(replicas), RelaySettings(), readiness.on_answer)
    reader = PromptReader(tokenizer, WINDOW, observe_seconds=lambda seconds: None)
    generation = GenerationApi(model, reader, relay.open, limits, on_failure=lambda error: None)

    async def no_siblings(timeout_seconds: float) -> list[Any]:
        return []

    scrape = ClusterScrape(CollectorRegistry(), "ingress-1", describing, lambda: (), no_siblings)
    handlers = OperationsApi(router, scrape, readiness).handlers()
    app = build_http_app(generation, ModelApi(model, reader, limits), handlers, on_failure=lambda error: None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://warmlane") as client:
        yield Operations(client, router, replicas, describing, running, clock)


async def status(operations: Operations, path: str = "/health/ready") -> int:
    response = await operations.client.get(path)
    if response.status_code != 200:
        check("ErrorResponse", response.json())
    return response.status_code


async def test_probes_may_ask_with_head(operations: Operations) -> None:
    for path in ("/health/live", "/health/ready", "/health", "/metrics", "/debug/router"):
        assert (await operations.client.head(path)).status_code == 200
    operations.running.clear()
    response = await operations.client.head("/health/ready")
    assert (response.status_code, response.content) == (503, b"")


async def test_live_does_not_depend_on_replicas(operations: Operations) -> None:
    operations.running.clear()
    assert await status(operations, "/health/live") == 200


async def test_not_ready_without_replicas(operations: Operations) -> None:
    operations.running.clear()
    assert await status(operations) == 503
    assert await status(operations, "/health") == 503


@pytest.mark.parametrize("failure", ["hangs", "died"])
async def test_c38_55_replicas_that_run_but_do_not_answer_are_not_ready(operations: Operations, failure: str) -> None:
    operations.describing.failure = failure
    asked = asyncio.create_task(status(operations))
    await eventually(lambda: operations.describing.asked)
    let_time_pass(BOUND_SECONDS)
    assert await asked == 503
    assert operations.describing.num_cancelled == 1
    operations.describing.failure = None
    assert await status(operations) == 200


async def test_each_check_asks_another_replica_and_an_answer_is_proof_for_a_while(operations: Operations) -> None:
    assert await status(operations) == 200
    assert await status(operations) == 200
    assert operations.describing.asked == ["a"]
    operations.clock.now += 11
    assert await status(operations) == 200
    assert operations.describing.asked == ["a", "b"]


async def test_an_answered_request_is_proof(operations: Operations) -> None:
    await operations.client.post("/v1/completions", json={"model": "small", "prompt": "a"})
    assert await status(operations) == 200
    assert operations.describing.asked == []


async def test_decisions_are_listed_newest_first(operations: Operations) -> None:
    replicas = []
    for _ in range(3):
        response = await operations.client.post("/v1/completions", json={"model": "small", "prompt": "a"})
        replicas.append(response.headers["x-warmlane-replica"])
    listed = (await operations.client.get("/debug/decisions", params={"limit": 2})).json()["data"]
    assert [decision["replica_id"] for decision in listed] == [replicas[2], replicas[1]]
    assert "block_keys" not in listed[0]


async def test_leading_zeros_of_a_limit_count_nothing(operations: Operations) -> None:
    assert (await operations.client.get("/debug/decisions", params={"limit": "0" * 9 + "500"})).status_code == 200


@pytest.mark.parametrize(
    "limit", ["0", "1001", "-1", "x", "", "²", "9" * 20, "0" * 8 + "19" * 12, "0" * 8 + "1" + "9" * 5000]
)
async def test_decisions_with_a_bad_limit(operations: Operations, limit: str) -> None:
    response = await operations.client.get("/debug/decisions", params={"limit": limit})
    assert response.status_code == 400
    check("ErrorResponse", response.json())


async def test_the_routers_status_is_json(operations: Operations) -> None:
    response = await operations.client.get("/debug/router")
    assert response.json()["running"] == ["a", "b"]


async def test_a_chat_goes_to_its_end(operations: Operations) -> None:
    body = {"model": "small", "messages": [{"role": "user", "content": "hello"}], "n": 2}
    answer = (await operations.client.post("/v1/chat/completions", json=body)).json()
    check("CreateChatCompletionResponse", answer)
    assert sorted(choice["message"]["content"] for choice in answer["choices"]) == ["x", "y"]  # round robin
    assert operations.router.status()["open_reservations"] == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (bad_request("no"), "rejected"),
        (NoReplicaAvailable("none"), "rejected"),
        (ReplicaLost("gone"), "error"),
        # Engines have counted these themselves.
        (RequestRefused("no", param="prompt"), None),
        (EngineOverloaded("full"), None),
        (RequestTimedOut("late"), None),
        (EngineFailure(500, "broken"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_41_a_failed_request_is_counted_once(error: Exception, reason: str | None) -> None:
    registry = CollectorRegistry()
    IngressMetrics(registry, "small", "ingress-1").count_failure(error)
    counts = {
        name: registry.get_sample_value(
            "warmlane_requests_total",
            {"model": "small", "process": "ingress-1", "replica": "", "finish_reason": name},
        )
        for name in ("rejected", "error")
    }
    assert counts == {"rejected": float(reason == "rejected"), "error": float(reason == "error")}
