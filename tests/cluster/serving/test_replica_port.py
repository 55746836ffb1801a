"""A replica's own port: a real engine on a tiny model, real HTTP."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from cluster.serving.cluster_spec import ClusterSpec
from cluster.serving.replica_port import ReplicaPort
from replica.engine.async_engine import AsyncEngine
from replica.messages import FinishReason
from tests.cluster.api.live_server import MODEL, WINDOW, tiny_llm
from tests.waiting import wait_until

KEY = "a-key-of-this-test"
HEADERS = {"authorization": f"Bearer {KEY}"}


@dataclass
class OpenPort:
    port: ReplicaPort
    engine: AsyncEngine
    client: httpx.Client


@contextmanager
def open_port(tokenizer_dir: Path) -> Iterator[OpenPort]:
    spec = ClusterSpec(
        served_model_name=MODEL,
        model_dir=str(tokenizer_dir),
        fingerprint="f" * 32,
        secret=b"0123456789abcdef",
        block_size=16,
        max_model_len=WINDOW,
        redis_url=None,
    )
    engine, registry = tiny_llm(tokenizer_dir), CollectorRegistry()
    Counter("things", "Counts.", registry=registry).inc()
    port = ReplicaPort(spec, engine, registry, KEY)
    with httpx.Client(base_url=port.url, headers=HEADERS, timeout=60.0) as client:
        yield OpenPort(port, engine, client)
    port.close()
    engine.close()


@pytest.fixture(scope="module")
def opened(tokenizer_dir: Path) -> Iterator[OpenPort]:
    with open_port(tokenizer_dir) as opened:
        yield opened


@pytest.fixture
def own(tokenizer_dir: Path) -> Iterator[OpenPort]:
    """Of one test alone, which may break it."""
    with open_port(tokenizer_dir) as opened:
        yield opened


def long_request(stream: bool) -> dict[str, object]:
    return {"model": MODEL, "prompt": "hello", "max_tokens": WINDOW - 100, "ignore_eos": True, "stream": stream}


def test_it_answers_as_the_cluster_does(opened: OpenPort) -> None:
    body = {"model": MODEL, "prompt": "the quick brown fox " * 8, "max_tokens": 4, "temperature": 0}
    first, second = (opened.client.post("/v1/completions", json=body).json() for _ in range(2))
    assert first["choices"] == second["choices"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert opened.client.get("/v1/models").json()["data"][0]["id"] == MODEL
    assert "things_total 1.0" in opened.client.get("/metrics").text


def test_an_offer_to_upgrade_to_http_2_is_passed_over(opened: OpenPort) -> None:
    """Some clients (Java's) make it with every request; its body must not get lost with it."""
    body = json.dumps({"model": MODEL, "prompt": "hello", "max_tokens": 1})
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__"}
    connection = http.client.HTTPConnection(opened.port.url.removeprefix("http://"), timeout=60)
    for _ in range(2):
        connection.request("POST", "/v1/completions", body, {**HEADERS, **offer, "content-type": "application/json"})
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["usage"]["completion_tokens"]) == (200, 1)
    connection.close()


@pytest.mark.parametrize(
    ("path", "authorization"),
    [
        *((path, None) for path in ("/v1/models", "/metrics", "/docs", "/openapi.json", "/nothing", "/health/")),
        *(("/v1/models", key) for key in ("", "Bearer", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}")),
    ],
)
def test_without_the_key_only_health_is_told(opened: OpenPort, path: str, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    answer = httpx.get(opened.port.url + path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(f"{opened.port.url}/health", headers=headers).status_code == 200


def test_nothing_is_computed_without_the_key(opened: OpenPort) -> None:
    before = opened.engine.engine.counters.num_prompt_tokens
    assert httpx.post(f"{opened.port.url}/v1/completions", json=long_request(False)).status_code == 401
    assert opened.engine.engine.counters.num_prompt_tokens == before


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(opened: OpenPort, stream: bool) -> None:
    scheduler, finished = opened.engine.engine.scheduler, opened.engine.engine.counters.num_finished
    before = finished[FinishReason.ABORT]
    host, _, port = opened.port.url.removeprefix("http://").partition(":")
    request = httpx.Request("POST", f"{opened.port.url}/v1/completions", json=long_request(stream), headers=HEADERS)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + request.content)
        wait_until(lambda: bool(scheduler.running), "the request runs")
    wait_until(lambda: not opened.engine.engine.has_work, "the request is gone")
    assert finished[FinishReason.ABORT] == before + 1


def test_it_listens_on_loopback_alone_and_ends_when_closed(own: OpenPort) -> None:
    assert own.port.url.startswith("http://127.0.0.1:")
    own.port.check_alive()
    own.port.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{own.port.url}/health")
    with pytest.raises(RuntimeError, match="the replica's API has ended"):
        own.port.check_alive()


def test_health_fails_with_the_engine(own: OpenPort) -> None:
    own.engine.close()
    answer = own.client.get("/health")
    assert answer.status_code == 503
    assert "engine" in answer.json()["error"]["message"]


def test_where_it_listens_stands_in_the_metrics(opened: OpenPort) -> None:
    registry = CollectorRegistry()
    opened.port.show_in(registry, {"replica": "a"})
    assert f'warmlane_replica_api_info{{replica="a",url="{opened.port.url}"}} 1.0' in generate_latest(registry).decode()
