"""`POST /admin/reset_prefix_cache` empties replicas first and every router's index after them."""

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request

from cluster.serving.cache_reset import CacheReset
from router.prefix_router import RouteRequest
from tests.cluster.serving.scripted_replicas import router_over

PROMPT = list(range(40))


class Resetting:
    """The replicas' handle where they are told to forget; `failing` raise."""

    def __init__(self, log: list[str], failing: frozenset[str] = frozenset(), method_name: str = ""):
        self._log, self._failing, self._method_name = log, failing, method_name

    def options(self, method_name: str) -> "Resetting":
        return Resetting(self._log, self._failing, method_name)

    def remote(self, *arguments: object, route_to: str) -> "asyncio.Future[int]":
        called = f"{self._method_name} {route_to}"
        self._log.append(called)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if called in self._failing:
            answer.set_exception(RuntimeError("dead"))
        else:
            answer.set_result(7)
        return answer


@pytest.mark.parametrize(
    ("failing", "answers", "status"),
    [
        ((), [None, None], 200),
        (("reset_prefix_cache b",), [None], 503),
        (("hold_pages_back b",), [None], 503),
        ((), [None, OSError()], 503),
    ],
)
async def test_no_replica_gives_pages_then_all_are_reset_then_all_ingresses(
    failing: tuple[str, ...], answers: list[Any], status: int
) -> None:
    log: list[str] = []

    async def broadcast(method: str, arguments: tuple[Any, ...], timeout_seconds: float) -> list[Any]:
        log.append(method)
        return answers

    reset = CacheReset(Resetting(log, frozenset(failing)), lambda: {"a", "b"}, broadcast)
    response = await reset.reset(Request({"type": "http", "headers": []}))
    held_back, were_reset = (
        [f"{method} {name}" for name in "ab"] for method in ("hold_pages_back", "reset_prefix_cache")
    )
    assert (log, response.status_code) == ([*held_back, *were_reset, "forget_cached"], status)
    assert json.loads(response.body)["failed_replicas"] == (["b"] if failing else [])


def test_a_router_forgets_what_it_believed() -> None:
    router = router_over("a", "b")
    request = RouteRequest(request_id="r", token_ids=PROMPT, max_new_tokens=1)
    sent_to = router.route(request).replica_id
    router.finish("r")

    def hits() -> dict[str, int]:
        return {
            score.replica_id: score.hit_blocks
            for score in router.explain(RouteRequest(request_id="e", token_ids=PROMPT, max_new_tokens=1)).scores
        }

    assert hits()[sent_to] > 0
    router.forget_cached()
    assert set(hits().values()) == {0}
