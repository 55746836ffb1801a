"""The policy of a real Serve application with two ingresses and a Redis, changed while it runs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from cluster.commands.cli import main
from cluster.serving.cluster_spec import ClusterSpec
from tests.cluster.serving import misbehaving_replica as replica
from tests.cluster.text.small_tokenizer import write_small_tokenizer
from tests.valkey_process import ValkeyProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e
APP = "policy-test"
START_SECONDS = 90.0


@dataclass
class Cluster:
    url: str
    http: httpx.Client
    deploy: Callable[[int, dict[str, Any]], None]

    def policies(self) -> list[tuple[str, Any]]:
        """What each ingress does; empty while one does not answer."""
        answer = self.http.get("/admin/policy").json()
        return [] if answer["errors"] else [(found["policy"], found["revision"]) for found in answer["ingresses"]]

    def expect(self, policy: str, num_ingress: int, what: str) -> None:
        def agreed() -> bool:
            found = self.policies()
            return len(found) == num_ingress and len(set(found)) == 1 and found[0][0] == policy

        wait_until(agreed, what, START_SECONDS)


@pytest.fixture(scope="module")
def cluster(serve_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    from cluster.serving.ingress import Ingress

    redis = ValkeyProcess()
    redis.start()
    spec = ClusterSpec(
        served_model_name="small",
        model_dir=str(write_small_tokenizer(tmp_path_factory.mktemp("tokenizer"))),
        fingerprint="fingerprint",
        secret=b"0123456789abcdef",
        block_size=4,
        max_model_len=256,
        redis_url=redis.url,
    )
    options = {"num_cpus": 0.1}
    same_code: Any = {"version": "1", "_internal": True}  # as `serve deploy` sees it when only user_config changed

    def deploy(num_ingress: int, user_config: dict[str, Any]) -> None:
        replicas = serve.deployment(replica.MisbehavingReplica).options(
            name="Replica", ray_actor_options=options, max_ongoing_requests=100, graceful_shutdown_timeout_s=1.0,
            request_router_config=RequestRouterConfig(request_router_class="router.ray_adapter:ChosenReplicaRouter"),
            **same_code,
        )  # fmt: skip
        ingress = serve.deployment(Ingress).options(
            name="Ingress", num_replicas=num_ingress, user_config=user_config, ray_actor_options=options,
            max_ongoing_requests=100, graceful_shutdown_timeout_s=1.0, **same_code,
        )  # fmt: skip
        serve.run(ingress.bind(spec, replicas.bind()), name=APP, route_prefix="/")

    try:
        deploy(2, {"policy": "least_tokens"})
        with httpx.Client(base_url=serve_url, timeout=60) as http:
            yield Cluster(serve_url, http, deploy)
    finally:
        serve.delete(APP)
        redis.close()


def answers(cluster: Cluster) -> None:
    response = cluster.http.post("/v1/completions", json={"model": "small", "prompt": [replica.ANSWER, 1, 2]})
    assert response.status_code == 200


def test_the_life_of_a_policy(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """One test, because each step starts from the one before."""
    cluster.expect("least_tokens", 2, "both ingresses start with their user_config")

    assert main(["policy", "set", "lmetric", "count_waiting=0", "--url", cluster.url]) == 0
    assert "lmetric, in 2 ingresses" in capsys.readouterr().out
    cluster.expect("lmetric", 2, "both ingresses have what the command set")
    answers(cluster)

    assert main(["policy", "set", "lmetric", "speed=1", "--url", cluster.url]) == 1
    assert "policy lmetric has no weight 'speed'; it has: count_waiting" in capsys.readouterr().err
    cluster.expect("lmetric", 2, "a refused weight changes nothing")

    cluster.deploy(3, {"policy": "least_tokens"})
    cluster.expect("lmetric", 3, "an ingress that starts later learns it")

    before = {ingress["process"] for ingress in cluster.http.get("/admin/policy").json()["ingresses"]}
    cluster.deploy(3, {"policy": "preble", "policy_weights": {"imbalance": 2.0}})
    wait_until(lambda: {p for p, _ in cluster.policies()} == {"preble"}, "a changed user_config is in force")
    cluster.deploy(3, {"policy": "preble", "policy_weights": {"imbalances": 2.0}})

    def refused() -> bool:
        answer = cluster.http.get("/admin/policy").json()
        return all("imbalances" in (ingress["refused_user_config"] or "") for ingress in answer["ingresses"])

    wait_until(refused, "a misspelt user_config is refused and said so")
    answer = cluster.http.get("/admin/policy").json()
    assert {ingress["policy"] for ingress in answer["ingresses"]} == {"preble"}
    assert {ingress["process"] for ingress in answer["ingresses"]} == before  # nobody was restarted for any of it
    answers(cluster)
