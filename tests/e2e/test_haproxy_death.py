"""HAProxy is killed: a new one is in its place much sooner than Ray's own settings would have it."""

from collections.abc import Callable

import httpx
import psutil

from cluster.lab.cluster_process import ClusterProcess
from tests.e2e.cluster_client import ClusterClient

REPLACED_SECONDS = 25.0
"""With Ray's settings three checks, 10 s apart, must fail before anything is done at all."""


def haproxies(cluster_process: ClusterProcess) -> list[psutil.Process]:
    return [process for process in cluster_process.processes() if process.name() == "haproxy"]


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/ready", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_killed_haproxy_is_replaced(
    cluster: ClusterClient, cluster_process: ClusterProcess, unseen_prompt: Callable[[int], list[int]]
) -> None:
    replicas, prompt = cluster.replicas(), unseen_prompt(64)
    holder = cluster.complete(prompt, max_tokens=1).replica
    before = haproxies(cluster_process)
    for process in before:
        process.kill()
    psutil.wait_procs(before, timeout=10.0)
    assert not answers(cluster.base_url)
    cluster.wait_until(lambda: answers(cluster.base_url), "a new HAProxy answers", REPLACED_SECONDS)
    assert not set(before) & set(haproxies(cluster_process))
    again = cluster.complete(prompt, max_tokens=1)  # nothing behind it was touched
    assert (again.replica, again.cached_tokens) == (holder, 48)
    assert cluster.replicas() == replicas
