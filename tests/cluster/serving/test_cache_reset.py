"""`POST /admin/reset_prefix_cache` empties replicas first and every router's index after them."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from cluster.serving.cache_reset import CacheReset
from router.prefix_router import RouteRequest
from tests.cluster.serving.scripted_replicas import router_over

PROMPT = list(range(40))


class Resetting:
    """The replicas' handle where they are told to forget; `failing` raise."""

    def __init__(self, log: list[str], failing: frozenset[str] = frozenset()):
        self._log, self._failing = log, failing

    def options(self, method_name: str) -> "Resetting":
        assert method_name == "reset_prefix_cache"
        return self

    def remote(self, route_to: str) -> "asyncio.Future[int]":
        self._log.append(route_to)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if route_to in self._failing:
            answer.set_exception(RuntimeError("dead"))
        else:
            answer.set_result(7)
        return answer


@pytest.mark.parametrize(
    ("failing", "answers", "status"), [((), [None, None], 200), (("b",), [None], 503), ((), [None, OSError()], 503)]
)
async def test_replicas_first_then_all_ingresses(failing: tuple[str, ...], answers: list[Any], status: int) -> None:
    log: list[str] = []

    async def broadcast(method: str, arguments: tuple[Any, ...], timeout_seconds: float) -> list[Any]:
        log.append(method)
        return answers

    reset = CacheReset(Resetting(log, frozenset(failing)), lambda: {"a", "b"}, broadcast)
    response = await reset.reset(Request({"type": "http", "headers": []}))
    assert (log, response.status_code) == (["a", "b", "forget_cached"], status)


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
