"""`/admin/policy` of several ingresses, and Serve's user_config."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from cluster.api.http_app import _guarded
from cluster.api.limits import ApiLimits
from cluster.serving.policy_control import PolicyApi, PolicyControl
from tests.cluster.openai_schema import check
from tests.router.routers import make_router


@dataclass
class Ingresses:
    """Controls that tell each other as Serve's broadcast does; `lost` do not answer."""

    controls: list[PolicyControl] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    hangs: bool = False

    def add(self) -> PolicyControl:
        process = f"ingress-{len(self.controls)}"
        router = make_router(replicas=("replica-a",), process=process)
        self.controls.append(PolicyControl(router, process, self._broadcast))
        return self.controls[-1]

    async def _broadcast(self, method: str, arguments: tuple[Any, ...], timeout_seconds: float) -> list[Any]:
        if self.hangs:
            raise TimeoutError("nobody answered")
        call = {"adopt_policy": PolicyControl.adopt, "local_policy": PolicyControl.local}[method]
        return [
            ConnectionError("gone") if number in self.lost else call(control, *arguments)
            for number, control in enumerate(self.controls)
        ]

    def policies(self) -> list[str]:
        return [str(control.local()["policy"]) for control in self.controls]


@pytest.fixture
def ingresses() -> Ingresses:
    found = Ingresses()
    for _ in range(3):
        found.add()
    return found


@pytest.fixture
async def http(ingresses: Ingresses) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    for (method, path), handler in PolicyApi(ingresses.controls[0], ApiLimits()).handlers().items():
        app.add_api_route(path, _guarded(handler, lambda error: None), methods=[method])
    async with AsyncExitStack() as stack:
        transport = httpx.ASGITransport(app)
        yield await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://warmlane"))


async def test_a_policy_set_at_one_ingress_is_in_force_in_all(ingresses: Ingresses, http: httpx.AsyncClient) -> None:
    response = await http.post("/admin/policy", json={"policy": "dynamo_cost", "weights": {"temperature": 0.5}})
    assert response.status_code == 200
    answer = response.json()
    assert (answer["policy"], answer["agreed"], answer["errors"]) == ("dynamo_cost", True, [])
    assert answer["weights"]["temperature"] == 0.5
    assert [ingress["process"] for ingress in answer["ingresses"]] == ["ingress-0", "ingress-1", "ingress-2"]
    assert ingresses.policies() == ["dynamo_cost"] * 3
    shown = (await http.get("/admin/policy")).json()
    assert shown == answer
    assert len({ingress["revision"] for ingress in shown["ingresses"]}) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"policy": "lmetric", "weights": {"speed": 1}}, "policy lmetric has no weight 'speed'; it has: count_waiting"),
        ({"policy": "lmetric", "weights": {"count_waiting": "1"}}, "weights must map names to numbers"),
        ({"policy": "lmetric", "weights": {"count_waiting": True}}, "weights must map names to numbers"),
        ({"policy": "lmetric", "weights": [1]}, "weights must map names to numbers, got [1]"),
        ({"policy": "lmetric", "weight": {}}, "unknown field 'weight'; known are policy and weights"),
        ({"weights": {}}, "policy must be the name of a policy, got None"),
    ],
)
async def test_what_is_refused_says_why_and_changes_nothing(
    ingresses: Ingresses, http: httpx.AsyncClient, body: dict[str, Any], message: str
) -> None:
    response = await http.post("/admin/policy", json=body)
    assert response.status_code == 400
    check("ErrorResponse", response.json())
    assert message in response.json()["error"]["message"]
    assert ingresses.policies() == ["expected_finish"] * 3


async def test_a_body_that_is_no_object_is_a_400(http: httpx.AsyncClient) -> None:
    assert (await http.post("/admin/policy", content=b"[]")).status_code == 400


async def test_an_ingress_that_could_not_be_told_is_named(ingresses: Ingresses, http: httpx.AsyncClient) -> None:
    ingresses.lost = {1}
    answer = (await http.post("/admin/policy", json={"policy": "lmetric"})).json()
    assert not answer["agreed"]
    assert answer["errors"] == ["ConnectionError('gone')"]
    ingresses.lost = set()
    answer = (await http.get("/admin/policy")).json()
    assert not answer["agreed"]
    assert [ingress["policy"] for ingress in answer["ingresses"]] == ["lmetric", "expected_finish", "lmetric"]


async def test_where_nobody_answers_the_policy_is_set_here_all_the_same(
    ingresses: Ingresses, http: httpx.AsyncClient
) -> None:
    ingresses.hangs = True
    answer = (await http.post("/admin/policy", json={"policy": "lmetric"})).json()
    assert (answer["policy"], answer["agreed"], len(answer["errors"])) == ("lmetric", False, 1)
    assert ingresses.policies() == ["lmetric", "expected_finish", "expected_finish"]


def test_user_config_is_the_start_and_a_later_one_is_a_change(ingresses: Ingresses) -> None:
    control = ingresses.controls[0]
    control.configure({"policy": "lmetric", "policy_weights": {"count_waiting": 0}})
    assert (control.local()["policy"], control.local()["revision"]) == ("lmetric", 0)
    asyncio.run(control.set("preble", {}))
    control.configure({"policy": "lmetric", "policy_weights": {"count_waiting": 0}})  # for another reason: no change
    assert control.local()["policy"] == "preble"
    control.configure({"policy": "random"})
    assert control.local()["policy"] == "random"


def test_a_restarted_ingress_does_not_undo_what_was_set(ingresses: Ingresses) -> None:
    first = ingresses.controls[0]
    first.configure({"policy": "lmetric"})
    asyncio.run(first.set("preble", {}))
    late = ingresses.add()
    late.configure({"policy": "lmetric"})
    late.adopt(first._router.policy_setting)  # as its follower does from Redis
    assert late.local()["policy"] == "preble"
    other = ingresses.add()
    other.configure({"policy": "random"})
    other.adopt(first._router.policy_setting)
    assert other.local()["policy"] == "random"  # a new configuration is not overridden by what was set before it


@pytest.mark.parametrize(
    ("user_config", "message"),
    [
        ({"policy": "lmetric", "policy_weights": {"speed": 1.0}}, "has no weight 'speed'"),
        ({"policy": "lmetric", "weights": {}}, "unknown field 'weights'; known are policy and policy_weights"),
        ({}, "policy must be the name of a policy"),
    ],
)
@pytest.mark.parametrize("at_start", [True, False])
def test_a_refused_user_config_is_logged_shown_and_changes_nothing(
    ingresses: Ingresses,
    caplog: pytest.LogCaptureFixture,
    user_config: dict[str, Any],
    message: str,
    at_start: bool,
) -> None:
    control = ingresses.controls[0]
    if not at_start:
        control.configure({"policy": "lmetric"})
    before = control.local()
    with caplog.at_level(logging.ERROR):
        control.configure(user_config)
    assert message in caplog.text
    after = control.local()
    assert message in after.pop("refused_user_config")
    assert before == after | {"refused_user_config": None}
    control.configure({"policy": "random"})
    assert (control.local()["policy"], control.local()["refused_user_config"]) == ("random", None)
