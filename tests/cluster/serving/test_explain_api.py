"""What an explanation says, with a real router and real engines; only Ray is missing between them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from cache.block_hasher import BlockHasher, ExtraKeys
from cluster.api.generation_api import GenerationApi, ServedModel
from cluster.api.http_app import Access, build_http_app
from cluster.api.limits import ApiLimits
from cluster.api.model_api import ModelApi
from cluster.api.prompt_reader import PromptReader
from cluster.api.tenants import ApiKeys, Tenant, key_hash
from cluster.serving.explain_api import ExplainApi
from cluster.text.tokenization import ChatTokenizer
from replica.engine.async_engine import AsyncEngine
from replica.engine.cache_inspection import cache_overlaps
from replica.messages import GenerateRequest
from replica.sampling_params import SamplingParams
from router.prefix_router import PrefixRouter
from tests.cluster.openai_schema import check
from tests.cluster.serving.scripted_replicas import ScriptedReplicas, router_over
from tests.replica.tiny_models import tiny_engine
from tests.waiting import BOUND_SECONDS, eventually, let_time_pass

WINDOW = 256
B = 4
HASHER = BlockHasher(b"0123456789abcdef", "tiny", B)
"""As `tiny_engine` has it."""


@dataclass
class Engines:
    """The replicas' handle where it is asked what the caches hold."""

    engines: dict[str, AsyncEngine]
    silent: set[str] = field(default_factory=set)
    num_answered: int = 0
    num_cancelled: int = 0

    def options(self, method_name: str) -> "Engines":
        assert method_name == "cache_overlaps"
        return self

    def remote(self, prompts: list[list[int]], extra_keys: ExtraKeys, route_to: str) -> "asyncio.Future[Any]":
        if route_to in self.silent:
            pending: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            pending.add_done_callback(lambda done: setattr(self, "num_cancelled", self.num_cancelled + 1))
            return pending
        answer = asyncio.ensure_future(cache_overlaps(self.engines[route_to], HASHER, prompts, extra_keys))
        answer.add_done_callback(lambda done: setattr(self, "num_answered", self.num_answered + 1))
        return answer

    async def compute(self, replica_id: str, token_ids: list[int], extra: ExtraKeys | None = None) -> None:
        number = sum(engine.engine.counters.num_prompt_tokens for engine in self.engines.values())
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        request = GenerateRequest(f"r{number}", token_ids, sampling, 0.0, extra_keys=extra or ExtraKeys())
        async for _ in self.engines[replica_id].generate(request):
            pass


@dataclass
class Explained:
    client: httpx.AsyncClient
    engines: Engines
    router: PrefixRouter
    replicas: ScriptedReplicas

    async def __call__(self, prompt: Any, key: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {"model": "small", "prompt": prompt, **fields}
        response = await self.client.post("/v1/explain", json=body, headers=headers)
        assert response.status_code == 200, response.text
        data: list[dict[str, Any]] = response.json()["data"]
        return data


@pytest.fixture
def engines() -> Iterator[Engines]:
    found = Engines({replica_id: AsyncEngine(tiny_engine()) for replica_id in "ab"})
    yield found
    for engine in found.engines.values():
        engine.close()


def app_over(engines: Engines, tokenizer: ChatTokenizer, keys: ApiKeys | None) -> tuple[Any, PrefixRouter]:
    router, limits = router_over("a", "b"), ApiLimits()
    model = ServedModel(name="small", fingerprint="f" * 32, max_model_len=WINDOW, created=1)
    reader = PromptReader(tokenizer, WINDOW, observe_seconds=lambda seconds: None)
    generation = GenerationApi(model, reader, lambda request: pytest.fail("it was run"), limits, lambda error: None)
    explain = ExplainApi(router, generation, engines, B, limits, timeout_seconds=BOUND_SECONDS)
    models, access = ModelApi(model, reader, limits), Access(keys=keys)
    return build_http_app(generation, models, explain.handlers(), lambda error: None, access=access), router


@pytest.fixture
async def explained(engines: Engines, tokenizer: ChatTokenizer, request: Any) -> AsyncIterator[Explained]:
    """Parameters: the file of keys, or the replicas that do not answer."""
    given = getattr(request, "param", None)
    engines.silent = given if isinstance(given, set) else set()
    app, router = app_over(engines, tokenizer, given if isinstance(given, ApiKeys) else None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://warmlane") as client:
        yield Explained(client, engines, router, ScriptedReplicas({}))


def caches(explanation: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    return {
        cache["replica_id"]: (cache["reusable_tokens"], cache["equal_tokens"], cache["computed_tokens"])
        for cache in explanation["caches"]
    }


async def test_the_page_example_page_by_page(explained: Explained) -> None:
    """Cached ABCDEFGHIJKL on one replica, asked ABCDEFGXIJKL: 7 equal, 4 reusable, 8 to compute."""
    held = [ord(letter) - 64 for letter in "ABCDEFGHIJKL"]
    await explained.engines.compute("b", held)
    asked = [*held[:7], 99, *held[8:]]
    (explanation,) = await explained(asked)
    assert caches(explanation) == {"a": (0, 0, 12), "b": (4, 7, 8)}
    assert explanation["caches"][1]["pages"] == [
        {"state": "reusable", "first_token": 0, "num_tokens": 4, "first_block": 0, "num_blocks": 1},
        {"state": "equal", "first_token": 4, "num_tokens": 3, "first_block": 1, "num_blocks": 1},
        {"state": "different", "first_token": 7, "num_tokens": 5, "first_block": 1, "num_blocks": 2},
    ]
    assert explanation["caches"][0]["pages"] == [
        {"state": "different", "first_token": 0, "num_tokens": 12, "first_block": 0, "num_blocks": 3}
    ]
    assert explanation["block_size"] == B


@pytest.mark.parametrize(
    "body",
    [
        {"model": "small", "prompt": "the quick brown fox", "n": 2},
        {"model": "small", "messages": [{"role": "user", "content": "hello"}], "stream": True},
    ],
    ids=["completion", "chat"],
)
async def test_nothing_is_run_reserved_counted_or_cached(explained: Explained, body: dict[str, Any]) -> None:
    response = await explained.client.post("/v1/explain", json=body)
    assert response.status_code == 200
    (explanation,) = response.json()["data"]
    assert {score["replica_id"] for score in explanation["scores"]} == {"a", "b"}
    assert explanation["reason"]
    assert "block_keys" not in explanation  # they would tell where prompts lie (C36)
    assert explained.router.status()["open_reservations"] == 0
    assert len(explained.router.log) == 0
    for engine in explained.engines.engines.values():
        assert engine.engine.counters.num_steps == 0
        assert engine.engine.manager.cached_keys() == set()


async def test_one_explanation_for_each_prompt(explained: Explained) -> None:
    await explained.engines.compute("a", list(range(9)))
    first, second = await explained([list(range(9)), list(range(100, 110))], n=3)
    assert caches(first) == {"a": (8, 8, 1), "b": (0, 0, 9)}
    assert caches(second) == {"a": (0, 0, 10), "b": (0, 0, 10)}


async def test_what_the_api_refuses_is_refused(explained: Explained) -> None:
    for body in ({}, {"model": "small"}, {"model": "small", "prompt": ""}, {"model": "x", "prompt": "a"}):
        response = await explained.client.post("/v1/explain", json=body)
        assert response.status_code in (400, 404)
        check("ErrorResponse", response.json())


@pytest.mark.parametrize("explained", [{"b"}], indirect=True)
async def test_a_replica_that_does_not_answer_is_shown_without_pages(explained: Explained) -> None:
    asked = asyncio.ensure_future(explained("hello there"))
    await eventually(lambda: explained.engines.num_answered)
    let_time_pass(BOUND_SECONDS)
    (explanation,) = await asked
    a, b = explanation["caches"]
    assert (a["pages"] is None, b["pages"]) == (False, None)
    assert b["reusable_tokens"] is b["equal_tokens"] is b["computed_tokens"] is None
    assert explained.engines.num_cancelled == 1


KEYS = ApiKeys((Tenant(name="one", key_hashes=(key_hash("k1"),)), Tenant(name="two", key_hashes=(key_hash("k2"),))))


@pytest.mark.parametrize("explained", [KEYS], indirect=True)
@pytest.mark.parametrize("salt", [None, "mine", "tenant:3:one:", "tenant:3:one:mine"])
async def test_51_a_tenant_learns_nothing_of_anothers_pages(explained: Explained, salt: str | None) -> None:
    """Whatever salt it sends, and however often the other one has computed the very same tokens."""
    prompt = list(range(13))
    for given in (None, "mine"):
        extra = ExtraKeys(cache_salt=KEYS.tenants[0].cache_salt(given))
        await explained.engines.compute("a", prompt, extra)
    (of_two,) = await explained(prompt, key="k2", **({"cache_salt": salt} if salt else {}))
    assert caches(of_two) == {"a": (0, 0, 13), "b": (0, 0, 13)}
    (of_one,) = await explained(prompt, key="k1")
    assert caches(of_one)["a"] == (12, 12, 1)


async def test_51_without_keys_a_salt_is_a_space_of_its_own(explained: Explained) -> None:
    prompt = list(range(13))
    await explained.engines.compute("b", prompt, ExtraKeys(cache_salt="mine"))
    for salt, expected in ((None, (0, 0, 13)), ("other", (0, 0, 13)), ("mine", (12, 12, 1))):
        (explanation,) = await explained(prompt, **({"cache_salt": salt} if salt else {}))
        assert caches(explanation)["b"] == expected
