"""The servers that `bench_http` compares, each with its own processes."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from cluster.machine.free_ports import FreePorts
from tests.benchmarks.http_apps import MODEL

_APART = (
    "raylet",
    "gcs_server",
    "dashboardagent",
    "runtime_env",
    "log_monitor",
    "servecontroller",
    "ray::idle",
    "http_cluster",
)
"""Ray's own housekeeping: no request passes through these, and what they use depends on time and not on requests."""
_READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Side:
    """url: of the API's root. process: all of the side's processes are this one and its descendants, but for the
    replicas of other applications."""

    name: str
    url: str
    process: psutil.Process

    def cpu_seconds(self) -> tuple[float, float]:
        """User and system time so far of the processes that requests pass through, and of Ray's housekeeping."""
        serving = apart = 0.0
        for process in [self.process, *self.process.children(recursive=True)]:
            try:
                times, title = process.cpu_times(), " ".join(process.cmdline())
            except psutil.Error:
                continue
            seconds = times.user + times.system
            if any(name in title.lower() for name in _APART):
                apart += seconds
            elif "ServeReplica" not in title or f"ServeReplica:{self.name}:" in title:
                serving += seconds
        return serving, apart


@contextmanager
def uvicorn_side(model_dir: Path) -> Iterator[Side]:
    port = FreePorts()()
    with _child("tests.benchmarks.http_apps", str(model_dir), str(port)) as process:
        side = Side("uvicorn", f"http://127.0.0.1:{port}", psutil.Process(process.pid))
        _wait_answer(side)
        yield side


@contextmanager
def cluster_sides(model_dir: Path, kind: str, names: tuple[str, ...]) -> Iterator[list[Side]]:
    """kind: "haproxy" or "python". names: of its applications, each at /name; they share HAProxy and Ray."""
    port = FreePorts()()
    with _child("tests.benchmarks.http_cluster", str(model_dir), str(port), kind) as process:
        if process.stdout is None or "ready" not in process.stdout.readline():
            raise RuntimeError(f"the {kind} cluster did not start; see its log in tests/benchmarks/out")
        root = psutil.Process(process.pid)
        url = f"http://127.0.0.1:{port}"
        sides = [Side(name, f"{url}/{name}", root) for name in names]
        for side in sides:
            _wait_answer(side)
        yield sides


@contextmanager
def _child(module: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    log_path = Path(__file__).parent / "out" / f"{module.rpartition('.')[2]}-{arguments[-1]}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            if module.endswith("http_apps"):
                process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_answer(side: Side) -> None:
    """Until a completion is answered, which also opens whatever the side opens at its first request."""
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 1}
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            if httpx.post(f"{side.url}/v1/completions", json=body).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > deadline or not side.process.is_running() or side.process.status() == "zombie":
            raise RuntimeError(f"{side.name} did not start; see its log in tests/benchmarks/out")
        time.sleep(0.1)
