"""The whole API over HTTP with a real engine on a tiny random model behind it: everything but Ray."""

import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch
import uvicorn
from tokenizers import Tokenizer

from cache.block_hasher import BlockHasher
from cluster.api.generation_api import GenerationApi, ServedModel
from cluster.api.http_app import Access, build_http_app
from cluster.api.limits import ApiLimits
from cluster.api.model_api import ModelApi
from cluster.api.prompt_reader import PromptReader
from cluster.api.tenants import ApiKeys
from cluster.text.tokenization import ChatTokenizer
from replica.config import EngineConfig
from replica.engine.async_engine import AsyncEngine
from replica.factory import build_engine
from replica.messages import GenerateRequest, TokenChunk
from replica.model.loader import LoadedModel
from tests.cluster.api.sse import events
from tests.cluster.scripted_engine import Decision
from tests.replica.tiny_models import random_model, tiny_config

MODEL = "tiny"
VOCAB_SIZE = 512
EOS_ID = 2
WINDOW = 2048


class DirectCall:
    """An EngineCall without routing or Ray."""

    def __init__(self, engine: AsyncEngine, request: GenerateRequest):
        self._engine = engine
        self._request = request
        self.decision: Decision | None = None

    async def stream(self) -> AsyncGenerator[list[TokenChunk], None]:
        self.decision = Decision()
        async for chunks in self._engine.generate(self._request):
            yield chunks

    async def collect(self) -> list[TokenChunk]:
        return [chunk async for chunks in self.stream() for chunk in chunks]


@dataclass
class LiveServer:
    url: str
    client: httpx.Client
    engine: AsyncEngine
    app: Any
    failures: list[BaseException] = field(default_factory=list)

    def post(self, path: str, **body: Any) -> Any:
        """The answer's body; raises for anything but 200."""
        response = self.client.post(path, json={"model": MODEL, **body})
        assert response.status_code == 200, response.text
        return response.json()

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a streamed answer, which must end whole."""
        response = self.client.post(path, json={"model": MODEL, "stream": True, **body})
        assert response.status_code == 200, response.text
        found, done = events(response.text)
        assert done
        return found

    def complete(self, prompt: Any, **fields: Any) -> Any:
        return self.post("/v1/completions", prompt=prompt, **fields)

    def chat(self, content: str, **fields: Any) -> Any:
        return self.post("/v1/chat/completions", messages=[{"role": "user", "content": content}], **fields)


def tiny_llm(tokenizer_dir: Path) -> AsyncEngine:
    config = tiny_config(
        "Llama", vocab_size=VOCAB_SIZE, eos_token_id=EOS_ID, pad_token_id=0, max_position_embeddings=WINDOW
    )
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    loaded = LoadedModel(
        random_model(config, seed=3), tokenizer, frozenset({EOS_ID}), VOCAB_SIZE, WINDOW, torch.float32,
        torch.device("cpu"),
    )  # fmt: skip
    engine_config = EngineConfig(model=MODEL, block_size=16, num_blocks=256)
    return AsyncEngine(build_engine(engine_config, BlockHasher(b"0123456789abcdef", MODEL, 16), loaded=loaded))


def live_app(
    tokenizer_dir: Path, engine: AsyncEngine, on_failure: Callable[[BaseException], None], keys: ApiKeys | None
) -> Any:
    tokenizer = ChatTokenizer(str(tokenizer_dir))
    model = ServedModel(name=MODEL, fingerprint="f" * 32, max_model_len=WINDOW, created=1)
    limits = ApiLimits(max_body_bytes=64 * 1024, max_choices=16)
    reader = PromptReader(tokenizer, WINDOW, observe_seconds=lambda seconds: None)
    generation = GenerationApi(model, reader, lambda request: DirectCall(engine, request), limits, on_failure)
    models = ModelApi(model, reader, limits)
    return build_http_app(generation, models, {}, on_failure, access=Access(keys=keys))


@contextmanager
def running_server(tokenizer_dir: Path, keys: ApiKeys | None = None) -> Iterator[LiveServer]:
    engine = tiny_llm(tokenizer_dir)
    failures: list[BaseException] = []
    app = live_app(tokenizer_dir, engine, failures.append, keys)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            yield LiveServer(url, client, engine, app, failures)
    finally:
        server.should_exit = True
        thread.join(20)
        engine.close()
        listener.close()
