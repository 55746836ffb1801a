"""The sides of `bench_router --part peers`: our cluster, and each other router in front of the same replicas."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from cluster.lab.metrics_snapshot import MetricsSnapshot
from cluster.machine.free_ports import FreePorts
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
    """urls: where the load goes, in turn. metrics_urls: the routers' own pages. processes: those that only route."""

    name: str
    urls: Sequence[str]
    metrics_urls: Sequence[str]
    processes: Callable[[], list[psutil.Process]]

    def cpu_seconds(self) -> float:
        return _cpu_seconds(self.processes())

    def decisions(self) -> Mapping[str, float]:
        """How many requests the router says it decided, and how, since it started."""
        found: Counter[str] = Counter()
        for url in self.metrics_urls:
            page = MetricsSnapshot(httpx.get(url, timeout=10.0).text)
            for counter, label in _DECISIONS[self.name]:
                found.update(page.by_label(counter, label))
        return {name: count for name, count in found.items() if count}


class PeerCluster:
    """Our cluster as a child process; its own routing is the first side. See `router_cluster`."""

    def __init__(
        self,
        model_dir: Path,
        engine: str,
        num_blocks: int,
        transport: str = "auto",
        num_ingress: int = 1,
        settings: Mapping[str, Any] | None = None,
        name: str = "router_cluster",
    ):
        """settings: further ones of ServeConfig. name: of its log."""
        self.api_key = secrets.token_hex(16)
        self._port = _ports()
        self._log = (OUT / f"{name}-{engine}.log").open("wb")
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", _CLUSTER,
                str(model_dir), str(self._port), engine, str(num_blocks), transport, str(num_ingress),
                json.dumps(settings or {}),
            ],
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

        return RouterSide(OURS, [self.url], [f"{self.url}/metrics"], routing)

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
def peer_side(name: str, cluster: PeerCluster, num_routers: int) -> Iterator[RouterSide]:
    """Fresh processes of another router, with its own default thresholds. Raises PeerUnavailable."""
    ports, mesh_ports = [_ports() for _ in range(num_routers)], [_ports() for _ in range(num_routers)]
    metrics_urls, processes = [], []
    with ExitStack() as stack:
        for number, port in enumerate(ports):
            mesh = _mesh(mesh_ports, number) if name == "smg" and num_routers > 1 else []
            metrics_port = _ports()
            metrics_urls.append(f"http://127.0.0.1:{metrics_port}/metrics")
            log = OUT / (f"{name}-{number}.log" if num_routers > 1 else f"{name}.log")
            processes.append(stack.enter_context(_peer(name, cluster, port, metrics_port, mesh, log)))
        for url in metrics_urls:
            _wait(lambda url=url: _knows_all_replicas(url), f"{name} knows all replicas; see its log in {OUT}")
        yield RouterSide(
            name,
            [f"http://127.0.0.1:{port}" for port in ports],
            metrics_urls,
            lambda: [each for process in processes for each in (process, *process.children(recursive=True))],
        )


@contextmanager
def _peer(
    name: str, cluster: PeerCluster, port: int, metrics_port: int, more: Sequence[str], log_path: Path
) -> Iterator[psutil.Process]:
    command = [
        str(router_command(name)), *_LAUNCH[name], "--host", "127.0.0.1", "--port", str(port),
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port), "--policy", "cache_aware",
        "--api-key", cluster.api_key, "--worker-urls", *cluster.replica_urls, *more,
    ]  # fmt: skip
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _mesh(ports: Sequence[int], number: int) -> list[str]:
    """smg's way to let several routers know what each knows."""
    others = [f"127.0.0.1:{port}" for port in ports if port != ports[number]]
    return [
        "--enable-mesh", "--mesh-server-name", f"router-{number}", "--mesh-host", "127.0.0.1",
        "--mesh-port", str(ports[number]), "--mesh-peer-urls", *others,
    ]  # fmt: skip


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
