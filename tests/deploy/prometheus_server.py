"""A real Prometheus on a free loopback port, with the project's own configuration pointed at one target."""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.dashboard import DEPLOY_DIR


def find_prometheus() -> str:
    """The binary, or a skip that says how to get it."""
    path = shutil.which("prometheus")
    if path is None:
        pytest.skip("prometheus is not installed (Debian and Ubuntu: apt-get install prometheus)")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class PrometheusServer:
    """Scrapes `target` (host:port) every two seconds; everything else is as in deploy/prometheus."""

    def __init__(self, target: str, folder: Path) -> None:
        config = yaml.safe_load((DEPLOY_DIR / "prometheus/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"}
        config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        shutil.copy(DEPLOY_DIR / "prometheus/alerts.yml", folder)
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log_path = folder / "prometheus.log"
        self._command = [
            find_prometheus(),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PrometheusServer":
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        try:
            self.wait_until(lambda: httpx.get(f"{self.url}/-/ready").status_code == 200, "Prometheus is ready")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._stop()

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Series of an instant query; raises AssertionError with Prometheus' own words when it refuses it."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expr}).json()
        if answer["status"] != "success":
            raise AssertionError(f"{expr}\n{answer.get('error')}")
        return answer["data"]["result"]

    def series(self, selector: str) -> list[dict[str, str]]:
        answer = httpx.get(f"{self.url}/api/v1/series", params={"match[]": selector}).json()
        if answer["status"] != "success":
            raise AssertionError(f"{selector}\n{answer.get('error')}")
        return answer["data"]

    def rules(self) -> list[dict[str, Any]]:
        groups = httpx.get(f"{self.url}/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def wait_until(
        self, condition: Callable[[], Any], what: str | Callable[[], str], timeout_seconds: float = 60.0
    ) -> None:
        """Polls; raises AssertionError naming `what` when the deadline passes or Prometheus ends."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                if condition():
                    return
            except httpx.TransportError:
                pass
            if self._process is None or self._process.poll() is not None:
                raise AssertionError(f"Prometheus ended:\n{self._log_path.read_text()[-2000:]}")
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{timeout_seconds} s passed, but not: {what if isinstance(what, str) else what()}"
                )
            time.sleep(0.1)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
