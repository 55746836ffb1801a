"""Ray's side: the named replica, else any that lives, and never an exception."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import RequestRouter

from router import ray_routing
from router.ray_adapter import ChosenReplicaRouter
from router.running_set import RUNNING_SET, RunningSet

ROOT = Path(__file__).parents[2]


@dataclass
class Candidate:
    name: str

    @property
    def replica_id(self) -> Any:
        return SimpleNamespace(unique_id=self.name)


@dataclass
class Pending:
    kwargs: Any
    routing_context: Any = field(default_factory=lambda: SimpleNamespace(should_backoff=False))


CANDIDATES = [Candidate("a"), Candidate("b"), Candidate("c")]


@pytest.fixture(autouse=True)
def clean_running_set() -> Iterator[None]:
    RUNNING_SET.fallbacks.clear()
    yield
    for owner in list(RUNNING_SET._by_owner):
        RUNNING_SET.replace((), owner)


def choose(candidates: list[Any], pending: Any) -> list[list[Any]]:
    router = object.__new__(ChosenReplicaRouter)  # its constructor needs a running Ray; it has no state of its own
    return asyncio.run(router.choose_replicas(candidates, pending))


def test_the_named_replica_is_the_only_rank() -> None:
    pending = Pending({"route_to": "b"})
    assert choose(CANDIDATES, pending) == [[CANDIDATES[1]]]
    assert pending.routing_context.should_backoff is True
    assert not RUNNING_SET.fallbacks


class Hostile:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(f"no {name} here")


@pytest.mark.parametrize(
    ("pending", "reason"),
    [
        (Pending({"route_to": "gone"}), "gone"),
        (Pending({}), "unnamed"),
        (None, "unnamed"),
        (Pending(None), "error"),
        (Pending({"route_to": "a"}, routing_context=None), "error"),
        (Hostile(), "error"),
    ],
)
def test_c38_whatever_is_wrong_a_live_replica_is_chosen_and_counted(pending: Any, reason: str) -> None:
    ranks = choose(CANDIDATES, pending)
    assert len(ranks) == 1
    assert ranks[0][0] in CANDIDATES
    assert RUNNING_SET.fallbacks == {reason: 1}


def test_c38_no_candidate_or_a_strange_one_is_no_exception() -> None:
    assert choose([], Pending({"route_to": "a"})) == []
    strange = Hostile()
    assert choose([strange], Pending({"route_to": "a"})) == [[strange]]


def test_c38_a_failing_listener_does_not_reach_ray() -> None:
    def fail(_: object) -> None:
        raise RuntimeError("listener")

    unsubscribe = [RUNNING_SET.subscribe(fail), RUNNING_SET.subscribe_fallbacks(fail)]
    ray_routing.replicas_changed("app", ["a", "b"])
    ray_routing.replica_died("a")
    assert choose(CANDIDATES, None)
    for end in unsubscribe:
        end()
    assert RUNNING_SET.replicas == {"b"}


ARRIVAL = """
import asyncio, pickle, sys
from types import SimpleNamespace as N
router_class = pickle.loads(sys.stdin.buffer.read())
router = object.__new__(router_class)
pending = N(kwargs={"route_to": "x"}, routing_context=N(should_backoff=False))
ranks = asyncio.run(router.choose_replicas([N(replica_id=N(unique_id="a"))], pending))
from router.running_set import RUNNING_SET
print("router.ray_adapter" in sys.modules, len(ranks), dict(RUNNING_SET.fallbacks), router.max_num_routing_tasks > 50)
"""


def test_the_class_arrives_by_value_and_finds_the_running_set_of_that_process() -> None:
    """As Ray does it. What the class needs must be imported where it arrives, not copied along with it."""
    config = RequestRouterConfig(request_router_class="router.ray_adapter:ChosenReplicaRouter")
    data = config.get_serialized_request_router_cls()
    done = subprocess.run([sys.executable, "-c", ARRIVAL], input=data, capture_output=True, check=True, cwd=ROOT)
    assert done.stdout.decode().strip() == "False 1 {'gone': 1} True"


def test_ray_replica_changes_reach_the_running_set(monkeypatch: pytest.MonkeyPatch) -> None:
    router = object.__new__(ChosenReplicaRouter)
    router._deployment_id = "Deployment(name='LLM', app='one')"
    monkeypatch.setattr(
        RequestRouter,
        "update_replicas",
        lambda self, replicas: setattr(self, "_replicas", {r.replica_id.unique_id: r for r in replicas}),
    )
    monkeypatch.setattr(RequestRouter, "on_replica_actor_died", lambda self, replica_id: None)
    router.update_replicas(CANDIDATES)
    assert RUNNING_SET.replicas == {"a", "b", "c"}
    router.on_replica_actor_died(SimpleNamespace(unique_id="b"))
    assert RUNNING_SET.replicas == {"a", "c"}
    router.update_replicas(CANDIDATES[:2])
    assert RUNNING_SET.replicas == {"a", "b"}


def test_c39_deployments_do_not_replace_each_others_replicas() -> None:
    running, seen = RunningSet(), []
    unsubscribe = running.subscribe(seen.append)
    running.replace(["a", "b"], owner="one")
    running.replace(["c"], owner="two")
    running.replace(["c"], owner="two")  # no change: nobody is told
    running.replace(["b"], owner="one")
    unsubscribe()
    running.discard("c")
    assert running.replicas == {"b"}
    assert seen == [{"a", "b"}, {"a", "b", "c"}, {"b", "c"}]
