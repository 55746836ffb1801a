"""`serve deploy` on a cluster under load: new settings take the place of old ones, and nothing is lost."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.cluster_client import ClusterClient
from tests.e2e.deployed_cluster import DeployedCluster
from tests.waiting import wait_until

NUM_CLIENTS = 2
ANSWER_TOKENS = 40


@pytest.fixture(scope="module")
def deployed(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedCluster]:
    cluster = DeployedCluster(tmp_path_factory.mktemp("deployed") / "ray.log")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class Clients:
    """Clients that stream one answer after the other until they are told to stop, and count how each ended."""

    def __init__(self, cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]) -> None:
        self._cluster, self._unseen_prompt = cluster, unseen_prompt
        self._stopped = threading.Event()
        self.ends: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(NUM_CLIENTS)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(120.0)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                end = self._answer()
            except httpx.HTTPError as error:
                end = repr(error)
            self.ends[end] += 1

    def _answer(self) -> str:
        body = self._cluster.completion_body(
            self._unseen_prompt(30), max_tokens=ANSWER_TOKENS, ignore_eos=True, stream=True
        )
        url = f"{self._cluster.base_url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=120.0) as response:
            text = "".join(response.iter_text())
        if response.status_code != 200:
            return f"{response.status_code} {text[:200]}"
        return "whole" if text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in text else text[-300:]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_rolling_update_and_a_scale_down_lose_no_request(
    deployed: DeployedCluster, model_dir: Path, unseen_prompt: Callable[[int], list[int]]
) -> None:
    settings = {"model": str(model_dir), "num_blocks": 600, "max_num_seqs": 4, "threads_per_replica": 1}

    deployed.deploy(settings, 2)
    wait_until(lambda: is_ready(deployed.base_url), "the cluster is ready", 180.0)
    first = deployed.wait_running(2)
    with Clients(ClusterClient(deployed.base_url), unseen_prompt) as clients:
        wait_until(lambda: clients.ends["whole"] >= NUM_CLIENTS, "answers come")
        changed = settings | {"max_num_seqs": 3}
        deployed.deploy(changed, 2)
        second = deployed.wait_running(2, first["Replica"])
        deployed.deploy(changed, 1)
        last = deployed.wait_running(1)
        before = clients.ends["whole"]
        wait_until(lambda: clients.ends["whole"] >= before + NUM_CLIENTS, "answers come")
    assert set(clients.ends) == {"whole"}, clients.ends
    assert last["Replica"] < second["Replica"], "what is to stay is not started anew"
    assert last["Ingress"] == second["Ingress"] != first["Ingress"]


def is_ready(base_url: str) -> bool:
    try:
        return httpx.get(f"{base_url}/health/ready", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False
