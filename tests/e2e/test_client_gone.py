"""A client that goes away frees its pages and its place in the queue, at every stage, streaming or not (24)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from cluster.lab.metrics_snapshot import MetricsSnapshot
from tests.e2e.cluster_client import ClusterClient

LONG_ANSWER = 2000
LONG_PROMPT = 6000


class Leaver:
    """One client in a thread of its own that sends a request and reads until it is told to go."""

    def __init__(self, cluster: ClusterClient, prompt: list[int], *, stream: bool) -> None:
        self._body = cluster.completion_body(prompt, max_tokens=LONG_ANSWER, ignore_eos=True, stream=stream)
        self._http = httpx.Client(base_url=cluster.base_url, timeout=300.0)
        self._socket: Any = None
        self._connected = threading.Event()
        self.ended_by_itself = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._http.stream("POST", "/v1/completions", json=self._body, extensions={"trace": self._trace}) as r:
                for _ in r.iter_raw():
                    pass
            self.ended_by_itself = True
        except httpx.HTTPError:
            pass  # the socket was closed under it, as `leave` does

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self._socket = info["return_value"].get_extra_info("socket")
            self._connected.set()

    def leave(self) -> None:
        """Closes the connection, as a browser tab or a killed process does."""
        assert self._connected.wait(30.0), "the client never connected"
        self._socket.shutdown(2)
        self._thread.join(30.0)
        assert not self._thread.is_alive()
        assert not self.ended_by_itself, "the request had ended before the client left"
        self._http.close()


@contextmanager
def leaving(*leavers: Leaver) -> Iterator[None]:
    """Sees to it that no client stays when a test fails half way."""
    try:
        yield
    except BaseException:
        for leaver in leavers:
            leaver.leave()
        raise


def grown(cluster: ClusterClient, before: MetricsSnapshot, name: str, **labels: str) -> float:
    return cluster.metrics().since(before).total(name, **labels)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_case_24_gone_while_decoding(
    stream: bool, cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    before = cluster.metrics()
    client = Leaver(cluster, unseen_prompt(40), stream=stream)
    with leaving(client):
        cluster.wait_until(lambda: grown(cluster, before, "warmlane_generated_tokens_total") >= 3, "three tokens")
        client.leave()
    after = cluster.wait_idle()
    assert after.since(before).total("warmlane_requests_total", finish_reason="abort") == 1
    assert after.since(before).total("warmlane_generated_tokens_total") < LONG_ANSWER


def test_case_24_gone_while_prefilling(cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]) -> None:
    before = cluster.metrics()
    client = Leaver(cluster, unseen_prompt(LONG_PROMPT), stream=False)
    with leaving(client):
        cluster.wait_until(lambda: cluster.metrics().total("warmlane_running_requests") == 1, "the request runs")
        client.leave()
    after = cluster.wait_idle().since(before)
    assert after.total("warmlane_requests_total", finish_reason="abort") == 1
    assert after.total("warmlane_generated_tokens_total") == 0
    assert after.total("warmlane_computed_positions_total") < LONG_PROMPT


def test_case_24_gone_while_queued(cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]) -> None:
    before = cluster.metrics()
    running = [Leaver(cluster, unseen_prompt(20), stream=True) for _ in range(8)]
    queued = [Leaver(cluster, unseen_prompt(20), stream=False) for _ in range(2)]

    def counts() -> tuple[float, float]:
        now = cluster.metrics()
        return now.total("warmlane_running_requests"), now.total("warmlane_waiting_requests")

    with leaving(*running, *queued):
        cluster.wait_until(lambda: sum(counts()) == 10 and counts()[1] >= 1, "all are in the engines, some in a queue")
        num_waiting = counts()[1]
        for client in queued:
            client.leave()
        cluster.wait_until(lambda: sum(counts()) == 8, "those that left are out of the engines")
        assert num_waiting >= 1
        for client in running:
            client.leave()
    after = cluster.wait_idle().since(before)
    assert after.total("warmlane_requests_total", finish_reason="abort") == 10
