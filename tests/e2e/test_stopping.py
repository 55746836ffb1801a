"""Ctrl-C while a client is being answered. Runs last: it stops the session's cluster (see conftest)."""

import threading
from collections.abc import Callable

import httpx

from cluster.lab.cluster_process import ClusterProcess
from tests.e2e.cluster_client import ClusterClient

LONG_ANSWER = 150


class Reader(threading.Thread):
    """Streams one answer and keeps what came."""

    def __init__(self, cluster: ClusterClient, prompt: list[int]) -> None:
        super().__init__(daemon=True)
        self._body = cluster.completion_body(prompt, max_tokens=LONG_ANSWER, ignore_eos=True, stream=True)
        self._url = cluster.base_url + "/v1/completions"
        self.events: list[str] = []
        self.has_begun = threading.Event()

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=60.0) as response:
            for line in response.iter_lines():
                if line:
                    self.events.append(line)
                    self.has_begun.set()


def test_what_runs_is_finished_and_what_comes_is_refused(
    cluster_process: ClusterProcess, live_cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    reader = Reader(live_cluster, unseen_prompt(30))
    reader.start()
    assert reader.has_begun.wait(30.0)
    left: list[str] = []
    stopping = threading.Thread(target=lambda: left.extend(cluster_process.stop()))
    stopping.start()
    body = live_cluster.completion_body(unseen_prompt(5), max_tokens=1)

    def refused() -> httpx.Response | None:
        response = live_cluster.http.post("/v1/completions", json=body)
        return response if response.status_code == 503 else None

    refusal = live_cluster.wait_until(refused, "requests are refused")
    assert refusal.json()["error"]["code"] == "stopping"
    assert int(refusal.headers["retry-after"]) > 0
    stopping.join(90.0)
    reader.join(10.0)
    assert reader.events[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in reader.events[-2]
    assert left == []
