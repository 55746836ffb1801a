"""One of two ingresses is killed under load: what it had in the engines is aborted, and the other one goes on."""

import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from cluster.lab.cluster_process import ClusterProcess
from tests.e2e.cluster_client import ClusterClient
from tests.e2e.running_cluster import running_cluster

pytestmark = pytest.mark.long

NUM_CLIENTS = 8
ANSWER_TOKENS = 400


@pytest.fixture(scope="module")
def cluster_process(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """A cluster of its own, with two entrances."""
    arguments = ("--num-ingress", "2", "--replicas", "2", "--num-blocks", "1100", "--max-num-seqs", "4")
    with running_cluster(arguments, tmp_path_factory.mktemp("cluster")) as process:
        yield process


@pytest.fixture
def cluster(cluster_process: ClusterProcess) -> Iterator[ClusterClient]:
    client = ClusterClient(cluster_process.base_url)
    client.wait_until(
        lambda: len(client.replicas()) == 2 and len(ingresses(client)) == 2, "all processes answer", 120.0
    )
    yield client


def ingresses(cluster: ClusterClient) -> set[str]:
    return set(cluster.metrics().by_label("warmlane_router_rung", "process"))


def ingress_processes(cluster_process: ClusterProcess) -> list[psutil.Process]:
    titles = {process: " ".join(process.cmdline()) for process in cluster_process.processes()}
    return [process for process, title in titles.items() if re.match(r"ray::ServeReplica:\w+:Ingress\b", title)]


class Streaming:
    """One client that reads an answer to its end, on a connection of its own."""

    def __init__(self, cluster: ClusterClient, prompt: list[int]):
        self._body = cluster.completion_body(prompt, max_tokens=ANSWER_TOKENS, ignore_eos=True, stream=True)
        self._url = f"{cluster.base_url}/v1/completions"
        self.begun = threading.Event()
        self.text = ""

    def read(self) -> bool:
        """Whether the answer came to its end."""
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=240.0) as response:
                for part in response.iter_text():
                    self.text += part
                    self.begun.set()
        except httpx.HTTPError:
            return False
        finally:
            self.begun.set()
        return "data: [DONE]" in self.text


def test_an_ingress_killed_under_load(
    cluster: ClusterClient, cluster_process: ClusterProcess, unseen_prompt: Callable[[int], list[int]]
) -> None:
    before = cluster.metrics()
    clients = [Streaming(cluster, unseen_prompt(40)) for _ in range(NUM_CLIENTS)]
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        reading = [pool.submit(client.read) for client in clients]
        for client in clients:
            assert client.begun.wait(120.0), "every request has got something"
        decisions = cluster.metrics().since(before).by_label("warmlane_route_decisions_total", "process")
        assert len([process for process, count in decisions.items() if count]) == 2, "both ingresses have requests"
        victim = ingress_processes(cluster_process)[0]
        victim.send_signal(signal.SIGKILL)
        whole = [future.result() for future in reading]

    for client, came_whole in zip(clients, whole, strict=True):
        assert came_whole or '"finish_reason":"' not in client.text.replace(" ", ""), "a false finish (54)"
    num_broken = whole.count(False)
    assert 0 < num_broken < NUM_CLIENTS
    grown = cluster.wait_idle().since(before)
    assert grown.total("warmlane_requests_total", finish_reason="abort") == num_broken
    assert grown.total("warmlane_requests_total", finish_reason="length") == NUM_CLIENTS - num_broken
    assert grown.total("warmlane_generated_tokens_total") < NUM_CLIENTS * ANSWER_TOKENS

    assert cluster.complete(unseen_prompt(40), max_tokens=3).completion_tokens == 3
    cluster.wait_until(lambda: len(ingresses(cluster)) == 2, "a new ingress is in place of the dead one")
