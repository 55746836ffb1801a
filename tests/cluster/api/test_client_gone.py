"""A client that goes away takes its work with it, at every stage (24, A13, A14)."""

import asyncio
import json
from typing import Any

import pytest

from tests.cluster.api.conftest import Api
from tests.cluster.scripted_engine import say
from tests.waiting import BOUND_SECONDS


class Connection:
    """One HTTP request over ASGI whose client can go at any moment."""

    def __init__(self, app: Any, path: str, body: dict[str, Any]):
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._to_app.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
        self.sent: list[dict[str, Any]] = []
        scope = {
            "type": "http", "asgi": {"spec_version": "2.3"}, "http_version": "1.1", "method": "POST", "path": path,
            "raw_path": path.encode(), "query_string": b"", "headers": [(b"content-type", b"application/json")],
            "scheme": "http", "server": ("warmlane", 80), "client": ("test", 1), "root_path": "",
        }  # fmt: skip
        self.done = asyncio.create_task(app(scope, self._to_app.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def leave(self) -> None:
        self._to_app.put_nowait({"type": "http.disconnect"})
        async with asyncio.timeout(BOUND_SECONDS):
            await self.done


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", [0, 3], ids=["before the first token", "while decoding"])
@pytest.mark.parametrize("num_choices", [1, 4])
async def test_24_a13_a15_leaving_aborts_every_choice(api: Api, stream: bool, stage: int, num_choices: int) -> None:
    api.engine.script, api.engine.hold = say(*"abcdef"), stage
    body = {"model": "small", "prompt": "hello", "stream": stream, "n": num_choices}
    connection = Connection(api.app, "/v1/completions", body)
    async with asyncio.timeout(BOUND_SECONDS):
        await api.engine.holding.wait()
    assert api.engine.num_running == num_choices
    await connection.leave()
    assert api.engine.num_running == 0
    assert api.failures == []


async def test_24_a_cancelled_request_aborts_too(api: Api) -> None:
    """As Ray Serve does it: the task of the whole request is cancelled."""
    api.engine.hold = 0
    connection = Connection(api.app, "/v1/completions", {"model": "small", "prompt": "hello"})
    async with asyncio.timeout(BOUND_SECONDS):
        await api.engine.holding.wait()
    connection.done.cancel()
    await asyncio.wait([connection.done])
    assert api.engine.num_running == 0


async def test_a_client_that_stays_gets_its_answer(api: Api) -> None:
    api.engine.hold = 1
    connection = Connection(api.app, "/v1/completions", {"model": "small", "prompt": "hello"})
    async with asyncio.timeout(BOUND_SECONDS):
        await api.engine.holding.wait()
        api.engine.release.set()
        await connection.done
    assert connection.sent[0]["status"] == 200
