"""The cluster's own Redis is killed, again and again: requests go on, and without a hand the index is whole again."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import redis

from cache.wire.redis_keys import KEY_SCHEME_VERSION
from cluster.lab.cluster_process import ClusterProcess
from tests.e2e.cluster_client import ClusterClient
from tests.e2e.running_cluster import run_folder

STARTED_AGAIN = "Redis had ended (killed by signal 9) and is started again."
DEATHS = 4
"""The first is answered at once; after so many the pause is longer than a router takes to call its index stale."""


@contextmanager
def redis_client(cluster_process: ClusterProcess) -> Iterator[redis.Redis]:
    folder = run_folder(cluster_process)
    assert folder is not None
    with redis.Redis(unix_socket_path=str(folder / "redis.sock")) as client:
        yield client


def server_pid(client: redis.Redis) -> int | None:
    try:
        return int(client.info("server")["process_id"])
    except redis.ConnectionError:
        return None


def test_a_killed_redis_is_replaced_and_filled_again(
    cluster: ClusterClient, cluster_process: ClusterProcess, unseen_prompt: Callable[[int], list[int]]
) -> None:
    prompt = unseen_prompt(64)
    cluster.complete(prompt, max_tokens=1)
    rungs: set[str] = set()

    def has_started(number: int) -> bool:
        cluster.complete(prompt, max_tokens=1)  # raises for anything but success
        rungs.add(cluster.http.get("/debug/router").json()["rung"])
        return cluster_process.output_path.read_text().count(STARTED_AGAIN) == number

    with redis_client(cluster_process) as client:
        for number in range(1, DEATHS + 1):
            pid = server_pid(client)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            cluster.wait_until(partial(has_started, number), "Redis is started again")
            assert server_pid(client) not in (None, pid)

        def is_whole_again() -> bool:
            router = cluster.http.get("/debug/router").json()
            return (router["rung"], router["redis"]) == ("fresh", "connected")

        cluster.wait_until(is_whole_again, "the router is in step again")
        cluster.wait_until(
            lambda: len(list(client.scan_iter(f"warmlane:{KEY_SCHEME_VERSION}:*:snapshot:*"))) == 2,
            "both replicas have written their index again",
        )
    assert "stale" in rungs
    cluster.wait_until(lambda: cluster.complete(prompt, max_tokens=1).cached_tokens == 48, "the index has it again")
