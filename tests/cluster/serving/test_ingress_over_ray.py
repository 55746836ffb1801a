"""The real ingress, router and Ray Serve, over replicas that fail on demand; through Serve's own Python proxy."""

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from ray.serve.exceptions import DeploymentUnavailableError

from cluster.serving.cluster_spec import ClusterSpec
from tests.cluster.api.sse import events
from tests.cluster.serving import misbehaving_replica as replica
from tests.cluster.text.small_tokenizer import write_small_tokenizer
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e
NUM_REPLICAS = 2


@dataclass
class Cluster:
    url: str
    http: httpx.Client
    handle: Any

    def complete(self, action: int, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": "small", "prompt": [action, 1, 2], **fields})

    def arm(self, mood: str, replica_id: str | None = None) -> None:
        """Returns when those who are meant have heard of it: a broadcast may miss one that Ray has just started."""
        meant = self.replica_ids() if replica_id is None else {replica_id}
        wait_until(
            lambda: meant <= {str(answer) for answer in self._ask_all("arm", mood, replica_id)}, f"they are {mood!r}"
        )

    def replicas(self) -> list[Any]:
        return self._ask_all("describe")

    def _ask_all(self, method: str, *args: Any) -> list[Any]:
        """Answers and exceptions of all replicas that run; none while the dead ones are being replaced."""
        try:
            return self.handle.broadcast(method, *args).results(timeout_s=30, return_exceptions=True)
        except DeploymentUnavailableError:
            return []

    def replica_ids(self) -> set[str]:
        return {answer["replica_id"] for answer in self.replicas() if isinstance(answer, dict)}

    def is_idle(self) -> bool:
        answers = self.replicas()
        whole = len(answers) == NUM_REPLICAS and all(isinstance(answer, dict) for answer in answers)
        status = self.http.get("/debug/router").json()
        return (
            whole
            and all(answer["num_open"] == 0 for answer in answers)
            and status["open_reservations"] == 0
            and set(status["running"]) == {answer["replica_id"] for answer in answers}
        )


@pytest.fixture(scope="module", params=["handle", "side_channel"])
def running_cluster(
    request: pytest.FixtureRequest, serve_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    from cluster.serving.ingress import Ingress

    spec = ClusterSpec(
        served_model_name="small",
        model_dir=str(write_small_tokenizer(tmp_path_factory.mktemp("tokenizer"))),
        fingerprint="fingerprint",
        secret=replica.SECRET,
        block_size=4,
        max_model_len=256,
        redis_url=None,
        policy="round_robin",
        transport=request.param,
    )
    app = f"ingress-test-{request.param}"
    options = {"num_cpus": 0.1}
    replicas = serve.deployment(replica.MisbehavingReplica).options(
        name="Replica", num_replicas=NUM_REPLICAS, ray_actor_options=options, max_ongoing_requests=100,
        health_check_period_s=1.0, graceful_shutdown_timeout_s=1.0,
        request_router_config=RequestRouterConfig(request_router_class="router.ray_adapter:ChosenReplicaRouter"),
    )  # fmt: skip
    ingress = serve.deployment(Ingress).options(
        name="Ingress", ray_actor_options=options, max_ongoing_requests=100, graceful_shutdown_timeout_s=1.0
    )
    serve.run(ingress.bind(spec, replicas.bind()), name=app, route_prefix="/")
    try:
        with httpx.Client(base_url=serve_url, timeout=60) as http:
            yield Cluster(serve_url, http, serve.get_deployment_handle("Replica", app))
    finally:
        serve.delete(app)


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """Whole and idle before and after each test."""
    wait_until(running_cluster.is_idle, "the cluster is whole and idle")
    yield running_cluster
    running_cluster.arm("")
    wait_until(running_cluster.is_idle, "the cluster is whole and idle again")


def test_requests_take_the_transport_that_was_asked_for(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    cluster.complete(replica.ANSWER)
    (transport,) = set(
        re.findall(r'warmlane_transport_requests_total{.*transport="(\w+)"', cluster.http.get("/metrics").text)
    )
    assert transport == request.node.callspec.params["running_cluster"]


def test_ready_and_answering(cluster: Cluster) -> None:
    assert cluster.http.get("/health/ready").status_code == 200
    response = cluster.complete(replica.ANSWER)
    assert response.json()["choices"][0]["text"] == "Hello"
    assert response.headers["x-warmlane-replica"] in cluster.replica_ids()


def test_39_the_request_id_stands_once_in_the_answer(cluster: Cluster) -> None:
    response = cluster.http.get("/v1/models", headers={"x-request-id": "mine"})
    assert response.headers.get_list("x-request-id") == ["mine"]


def test_the_official_client_reads_a_stream(cluster: Cluster) -> None:
    client = openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none")
    messages: Any = [{"role": "user", "content": "hello"}]
    stream = client.chat.completions.create(
        model="small", messages=messages, stream=True, stream_options={"include_usage": True}, n=2
    )
    texts, usage = {0: "", 1: ""}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "Hello", 1: "Hello"}
    assert usage is not None
    assert usage.completion_tokens == 4
    client.close()


def test_refusals_keep_their_meaning_across_processes(cluster: Cluster) -> None:
    response = cluster.complete(replica.REFUSE)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["message"], error["param"]) == ("the pool is too small", "prompt")
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_in_a_replica_is_a_500_without_internals(cluster: Cluster, stream: bool) -> None:
    response = cluster.complete(replica.FAULT, stream=stream)
    assert response.status_code == 500
    assert "internals" not in response.text


def test_53_a_full_replica_is_left_and_when_all_are_full_the_client_is_told(cluster: Cluster) -> None:
    full = min(cluster.replica_ids())
    cluster.arm("full", full)
    for _ in range(4):
        response = cluster.complete(replica.ANSWER)
        assert response.status_code == 200
        assert response.headers["x-warmlane-replica"] != full
    cluster.arm("full")
    for stream in (False, True):
        response = cluster.complete(replica.ANSWER, stream=stream)
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "engine_overloaded"
        assert int(response.headers["retry-after"]) >= 1


def test_58_a_replica_that_was_full_takes_requests_again(cluster: Cluster) -> None:
    full = min(cluster.replica_ids())
    cluster.arm("full", full)
    assert {cluster.complete(replica.ANSWER).headers["x-warmlane-replica"] for _ in range(4)}.isdisjoint({full})
    cluster.arm("")
    wait_until(
        lambda: cluster.complete(replica.ANSWER).headers["x-warmlane-replica"] == full, "it takes requests again"
    )


@pytest.mark.parametrize("stream", [False, True])
def test_46_a_replica_that_dies_on_arrival_is_replaced_without_an_error(cluster: Cluster, stream: bool) -> None:
    dying = min(cluster.replica_ids())
    cluster.arm("die", dying)
    responses = [cluster.complete(replica.ANSWER, stream=stream) for _ in range(4)]
    assert [response.status_code for response in responses] == [200] * 4
    assert all(response.headers["x-warmlane-replica"] != dying for response in responses)
    wait_until(lambda: dying not in cluster.replica_ids(), "the dead replica is gone")


def test_every_replica_dies_on_arrival(cluster: Cluster) -> None:
    cluster.arm("die")
    response = cluster.complete(replica.ANSWER)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1


def test_54_a_death_after_the_first_byte_ends_the_stream_with_an_error(cluster: Cluster) -> None:
    response = cluster.complete(replica.DIE_MIDWAY, stream=True)
    assert response.status_code == 200
    chunks, done = events(response.text)
    assert not done
    assert chunks[0]["choices"][0]["text"] == "Hel"
    assert chunks[-1]["error"]["code"] == "replica_lost"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("action", [replica.HANG_QUEUED, replica.HANG_MIDWAY], ids=["queued", "decoding"])
def test_24_a13_a_client_that_leaves_takes_its_work_with_it(cluster: Cluster, action: int, stream: bool) -> None:
    body = json.dumps({"model": "small", "prompt": [action], "stream": stream}).encode()
    host, port = cluster.url.removeprefix("http://").split(":")
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: any(answer["num_open"] for answer in cluster.replicas()), "a replica has the request")
    wait_until(cluster.is_idle, "the replica has let go and the reservation has ended")


def test_metrics_of_all_processes_and_of_one_that_is_mute(cluster: Cluster) -> None:
    ids = cluster.replica_ids()
    page = cluster.http.get("/metrics").text
    assert all(f'replica="{id}"' in page for id in ids)
    assert 'process="ingress-' in page
    assert "warmlane_scrape_failed{" not in page
    mute = min(ids)
    cluster.arm("mute", mute)
    page = cluster.http.get("/metrics").text
    assert f'warmlane_scrape_failed{{process="replica-{mute}"}} 1.0' in page
    assert f'replica="{max(ids)}"' in page
