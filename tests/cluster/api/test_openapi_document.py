"""Requests made up from our own OpenAPI document: whatever comes, there is no 5xx and errors have the official form."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from prometheus_client import CollectorRegistry
from schemathesis.checks import not_a_server_error

from cluster.api.generation_api import GenerationApi, ServedModel
from cluster.api.http_app import build_http_app
from cluster.api.limits import ApiLimits
from cluster.api.model_api import ModelApi
from cluster.api.prompt_reader import PromptReader
from cluster.serving.cluster_scrape import ClusterScrape
from cluster.serving.explain_api import ExplainApi
from cluster.serving.operations_api import OperationsApi
from cluster.serving.readiness import Readiness
from cluster.text.tokenization import ChatTokenizer
from replica.engine.async_engine import AsyncEngine
from tests.cluster.api.live_server import MODEL, WINDOW, DirectCall, tiny_llm
from tests.cluster.openai_schema import check
from tests.cluster.serving.scripted_replicas import router_over

MAX_TOKENS = 4
MAX_EXAMPLES = 40
PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model}", "/tokenize", "/detokenize",
    "/v1/explain", "/health", "/health/live", "/health/ready", "/metrics", "/debug/decisions", "/debug/router",
)  # fmt: skip


class NobodyAsks:
    """The replicas' handle for metrics and health, where no replica runs."""

    def options(self, **options: Any) -> "NobodyAsks":
        return self


def whole_app(tokenizer_dir: Path, engine: AsyncEngine) -> Any:
    """Every path of the ingress over a real engine; health says that no replica runs, which is a 503 of its own."""
    tokenizer, router, limits = ChatTokenizer(str(tokenizer_dir)), router_over("a", "b"), ApiLimits()
    model = ServedModel(name=MODEL, fingerprint="f" * 32, max_model_len=WINDOW, created=1)
    reader = PromptReader(tokenizer, WINDOW, observe_seconds=lambda seconds: None)
    generation = GenerationApi(model, reader, lambda request: DirectCall(engine, request), limits, lambda error: None)

    async def no_siblings(timeout_seconds: float) -> list[Any]:
        return []

    scrape = ClusterScrape(CollectorRegistry(), "ingress-1", NobodyAsks(), lambda: (), no_siblings)
    readiness = Readiness(router, NobodyAsks(), lambda: frozenset())
    explain = ExplainApi(router, generation, NobodyAsks(), 4, limits)
    handlers = {**OperationsApi(router, scrape, readiness).handlers(), **explain.handlers()}
    return build_http_app(generation, ModelApi(model, reader, limits), handlers, lambda error: None)


@pytest.fixture(scope="module")
def app(tokenizer_dir: Path) -> Iterator[Any]:
    engine = tiny_llm(tokenizer_dir)
    yield whole_app(tokenizer_dir, engine)
    engine.close()


@pytest.fixture(scope="module")
def document(app: Any) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", app)


def made_servable(case: schemathesis.Case) -> None:
    """Names the served model and bounds the answer, or nearly all bodies would end at the first check."""
    if isinstance(case.body, dict) and case.path.startswith("/v1/"):
        case.body.setdefault("model", MODEL)
        if isinstance(case.body["model"], str):
            case.body["model"] = MODEL
        if isinstance(case.body.get("max_tokens"), int | None) and "max_completion_tokens" not in case.body:
            case.body["max_tokens"] = MAX_TOKENS
        if isinstance(case.body.get("n"), int):
            case.body["n"] = 1 + case.body["n"] % 2


@pytest.mark.parametrize("path", PATHS)
def test_no_request_is_a_server_error(document: Any, path: str) -> None:
    for operation in document[path].values():

        @settings(max_examples=MAX_EXAMPLES, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def check_one(case: schemathesis.Case) -> None:
            made_servable(case)
            response = case.call()
            if path in ("/health", "/health/ready"):
                assert response.status_code == 503
            else:
                case.validate_response(response, checks=[not_a_server_error])
            if response.status_code >= 400:
                check("ErrorResponse", response.json())

        check_one()


def test_every_path_is_described(app: Any) -> None:
    document = app.openapi()
    assert set(document["paths"]) == set(PATHS)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("summary"), (method, path)
            assert "400" in operation["responses"] or path.startswith(("/health", "/metrics")), (method, path)
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
