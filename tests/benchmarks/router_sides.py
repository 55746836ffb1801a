"""The sides of `bench_router --part peers`: our cluster, and each other router in front of the same replicas."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from cluster.free_ports import FreePorts
from cluster.lab.metrics_snapshot import MetricsSnapshot
from tests.benchmarks.router_cluster import NUM_REPLICAS
from tests.benchmarks.router_venvs import PACKAGES, router_command

OURS = "warmlane"
PEERS = tuple(PACKAGES)
OUT = Path(__file__).parent / "out"
START_SECONDS = 180.0
_CLUSTER = "tests.benchmarks.router_cluster"
_LAUNCH = {"sglang-router": ["launch"], "smg": ["launch"], "vllm-router": []}
_DECISIONS = {
    OURS: (("warmlane_route_decisions_total", "outcome"),),
    "sglang-router": (("smg_worker_selection_total", "policy"),),
    "smg": (("smg_cache_aware_policy_branch_total", "branch"), ("smg_worker_selection_total", "policy")),
    "vllm-router": (("vllm_router_prefix_routing_decisions_total", "outcome"),),
}
"""Each router's own account of its decisions: counter, and the label that tells them apart."""

_ports = FreePorts()


@dataclass(frozen=True, slots=True)
class RouterSide:
    """url: where the load goes. metrics_url: the router's own page. processes: those that only route."""

    name: str
    url: str
    metrics_url: str
    processes: Callable[[], list[psutil.Process]]

    def cpu_seconds(self) -> float:
        return _cpu_seconds(self.processes())

    def decisions(self) -> Mapping[str, float]:
        """How many requests the router says it decided, and how, since it started."""
        page = MetricsSnapshot(httpx.get(self.metrics_url, timeout=10.0).text)
        found: dict[str, float] = {}
        for counter, label in _DECISIONS[self.name]:
            found |= page.by_label(counter, label)
        return {name: count for name, count in found.items() if count}


class PeerCluster:
    """Our cluster as a child process; its own routing is the first side. See `router_cluster`."""

    def __init__(self, model_dir: Path, engine: str, num_blocks: int, transport: str):
        self.api_key = secrets.token_hex(16)
        self._port = _ports()
        self._log = (OUT / f"router_cluster-{engine}.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", _CLUSTER, str(model_dir), str(self._port), engine, str(num_blocks), transport],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "REPLICA_API_KEY": self.api_key},
        )  # fmt: skip
        self.url = f"http://127.0.0.1:{self._port}"
        self.replica_urls: list[str] = []

    def __enter__(self) -> "PeerCluster":
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            self.__exit__()
            raise RuntimeError(f"the cluster did not start; see {self._log.name}")
        self.replica_urls = json.loads(line)["replicas"]
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def side(self) -> RouterSide:
        def routing() -> list[psutil.Process]:
            return [each for each, title in self._titles() if ":Ingress" in title or title.startswith("haproxy")]

        return RouterSide(OURS, self.url, f"{self.url}/metrics", routing)

    def replica_cpu_seconds(self) -> float:
        return _cpu_seconds([process for process, title in self._titles() if ":Replica" in title])

    def metrics(self) -> MetricsSnapshot:
        """The replicas' counters, whoever sent the requests."""
        return MetricsSnapshot(httpx.get(f"{self.url}/metrics", timeout=10.0).text)

    def empty_caches(self) -> None:
        """Waits until nothing runs, and lets replicas and our router forget what is cached."""
        _wait(self._idle, "no request runs")
        httpx.post(f"{self.url}/admin/reset_prefix_cache", timeout=30.0).raise_for_status()

    def _idle(self) -> bool:
        now = self.metrics()
        return now.total("warmlane_running_requests") + now.total("warmlane_waiting_requests") == 0

    def _titles(self) -> Iterator[tuple[psutil.Process, str]]:
        for process in psutil.Process(self._process.pid).children(recursive=True):
            try:
                title = " ".join(process.cmdline())
                yield process, title if title.startswith("ray::") else process.name()
            except psutil.Error:
                continue


@contextmanager
def peer_side(name: str, cluster: PeerCluster) -> Iterator[RouterSide]:
    """A fresh process of another router, with its own default thresholds. Raises PeerUnavailable."""
    port, metrics_port = _ports(), _ports()
    command = [
        str(router_command(name)), *_LAUNCH[name], "--host", "127.0.0.1", "--port", str(port),
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port), "--policy", "cache_aware",
        "--api-key", cluster.api_key, "--worker-urls", *cluster.replica_urls,
    ]  # fmt: skip
    metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"
    with (OUT / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(lambda: _knows_all_replicas(metrics_url), f"{name} knows all replicas; see {log.name}")
            root = psutil.Process(process.pid)
            yield RouterSide(
                name, f"http://127.0.0.1:{port}", metrics_url, lambda: [root, *root.children(recursive=True)]
            )
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _knows_all_replicas(metrics_url: str) -> bool:
    try:
        page = MetricsSnapshot(httpx.get(metrics_url, timeout=2.0).text)
    except (httpx.HTTPError, ValueError):
        return False
    return any(page.total(name) == NUM_REPLICAS for name in page.samples if name.endswith("_worker_health"))


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{START_SECONDS:.0f} s passed, but not: {what}")
        time.sleep(0.1)
