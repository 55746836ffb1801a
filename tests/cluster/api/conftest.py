"""The API on a real tokenizer with a scripted engine behind it."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.api.generation_api import GenerationApi, ServedModel
from cluster.api.http_app import build_http_app
from cluster.api.limits import ApiLimits
from cluster.api.model_api import ModelApi
from cluster.api.prompt_reader import PromptReader
from cluster.text.tokenization import ChatTokenizer
from tests.cluster.api.live_server import LiveServer, running_server
from tests.cluster.scripted_engine import ScriptedEngine

WINDOW = 256


@pytest.fixture(scope="module")
def live(tokenizer_dir: Path) -> Iterator[LiveServer]:
    with running_server(tokenizer_dir) as server:
        yield server


@dataclass
class Api:
    client: httpx.AsyncClient
    engine: ScriptedEngine
    app: Any
    generation: GenerationApi
    models: ModelApi
    failures: list[BaseException] = field(default_factory=list)

    async def chat(self, content: Any = "hello", **fields: Any) -> httpx.Response:
        body = {"model": "small", "messages": [{"role": "user", "content": content}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"model": "small", "prompt": prompt, **fields})


@pytest.fixture
async def api(tokenizer: ChatTokenizer) -> AsyncIterator[Api]:
    engine, failures = ScriptedEngine(), []
    model = ServedModel(name="small", fingerprint="f" * 32, max_model_len=WINDOW, created=1)
    limits = ApiLimits(max_body_bytes=64 * 1024, max_choices=16)
    reader = PromptReader(tokenizer, WINDOW, observe_seconds=lambda seconds: None)
    generation = GenerationApi(model, reader, engine.open, limits, failures.append)
    models = ModelApi(model, reader, limits)
    app = build_http_app(generation, models, {}, failures.append)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://warmlane") as client:
        yield Api(client, engine, app, generation, models, failures)
