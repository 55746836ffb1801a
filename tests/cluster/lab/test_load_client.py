"""The load client against a real HTTP server that speaks the streaming API, well and badly."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from cluster.lab.arm_result import ArmResult, differences_in_work
from cluster.lab.conversations import Conversation, Exchange
from cluster.lab.load_client import LoadClient, RequestRecord
from cluster.lab.metrics_snapshot import MetricsSnapshot

USAGE = {"prompt_tokens": 12, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
HELLO = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": "Hel"}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": "lo"}, "finish_reason": "length"}]},
]
BREAKS = "a\u2028b\u2029c\x85d"
"""JSON may hold these as they are; `str.splitlines` and httpx take them for ends of lines."""
SCRIPTS = {
    "whole": [*HELLO, {"choices": [], "usage": USAGE}, "[DONE]"],
    "line breaks": [
        json.dumps({"choices": [{"delta": {"content": BREAKS}, "finish_reason": "stop"}]}, ensure_ascii=False),
        {"choices": [], "usage": USAGE},
        "[DONE]",
    ],
    "cut": HELLO,
    "no usage": [*HELLO, "[DONE]"],
    "error": [*HELLO[:2], {"error": {"message": "the replica died", "type": "server_error"}}],
}


class ScriptedServer:
    """Answers a chat by the script that its last message names, and remembers who asked in which order."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.most_at_once = 0
        self._at_once = 0
        app = Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])])
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        self.socket = socket.create_server(("127.0.0.1", 0))

    async def answer(self, request: Request) -> Response:
        text = (await request.json())["messages"][-1]["content"]
        self.seen.append(text)
        if text == "refuse":
            return JSONResponse({"error": {"message": "queue full"}}, status_code=429)
        return StreamingResponse(self._events(SCRIPTS.get(text, SCRIPTS["whole"])), media_type="text/event-stream")

    async def _events(self, script: list) -> AsyncIterator[str]:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        for event in script:
            yield f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n"
        self._at_once -= 1


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer()
    task = asyncio.create_task(scripted.server.serve(sockets=[scripted.socket]))
    yield scripted
    scripted.server.should_exit = True
    await task


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[LoadClient]:
    port = server.socket.getsockname()[1]
    async with LoadClient(f"http://127.0.0.1:{port}", "m", max_tokens=2) as client:
        yield client


def message(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_a_whole_answer(client: LoadClient) -> None:
    record = await client.chat(message("whole"))
    assert record.error is None
    assert (record.text, record.finish_reason) == ("Hello", "length")
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (12, 8, 2)
    assert record.ttft_seconds is not None
    assert 0 < record.ttft_seconds <= record.total_seconds


async def test_a_line_of_an_event_stream_ends_at_a_newline_alone(client: LoadClient) -> None:
    record = await client.chat(message("line breaks"))
    assert record.error is None
    assert record.text == BREAKS


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cut", "the stream ended without usage"),
        ("no usage", "the stream ended without usage"),
        ("error", "the replica died"),
        ("refuse", "HTTP 429"),
    ],
)
async def test_an_answer_that_is_not_whole_is_an_error(text: str, error: str, client: LoadClient) -> None:
    record = await client.chat(message(text))
    assert record.error is not None
    assert error in record.error


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with LoadClient("http://127.0.0.1:9", "m", max_tokens=2) as client:
        record = await client.chat(message("whole"))
    assert record.error is not None
    assert "ConnectError" in record.error


async def test_closed_loop_keeps_the_order_within_conversations(client: LoadClient, server: ScriptedServer) -> None:
    conversations = [
        Conversation(str(c), "g", "system", tuple(Exchange(f"{c}.{turn}", "answer") for turn in range(3)))
        for c in range(4)
    ]
    done: list[RequestRecord] = []
    records = await client.play(conversations, concurrency=2, on_record=done.append)
    assert len(records) == len(done) == 12
    assert all(record.error is None for record in records)
    assert server.most_at_once <= 2
    for c in range(4):
        assert [text for text in server.seen if text.startswith(f"{c}.")] == [f"{c}.{turn}" for turn in range(3)]


def arm(policy: str, records: list[RequestRecord], prompt_tokens: int) -> ArmResult:
    text = f'# TYPE warmlane_prompt_tokens counter\nwarmlane_prompt_tokens_total{{replica="a"}} {prompt_tokens}\n'
    return ArmResult(policy, records, MetricsSnapshot(text), 1.0)


def test_arms_with_equal_work_are_comparable_and_others_say_why() -> None:
    good = RequestRecord(0.1, 0.2, prompt_tokens=12, completion_tokens=2, finish_reason="length")
    failed = RequestRecord(None, 0.2, error="HTTP 500")
    assert differences_in_work(arm("a", [good, good], 24), arm("b", [good, good], 24)) == []
    assert differences_in_work(arm("a", [good, good], 24), arm("b", [good], 12)) == [
        "completed requests: 2 and 1",
        "prompt tokens: 24 and 12",
        "generated tokens: 4 and 2",
    ]
    (problem,) = differences_in_work(arm("a", [good], 24), arm("b", [good], 24))[:1]
    assert problem == "a: answers name 12 prompt tokens, /metrics 24"
    assert "b: 1 of 2 requests failed" in differences_in_work(arm("a", [good], 12), arm("b", [good, failed], 12))[0]
