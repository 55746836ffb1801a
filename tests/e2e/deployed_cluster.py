"""A Ray cluster as an operator runs it, `ray start` and `serve deploy`, with the settings of `warmlane serve`."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from cluster.api.limits import KEEP_ALIVE_SECONDS
from cluster.config import ServeConfig
from cluster.local.ray_runtime import ray_environment
from cluster.machine.free_ports import FreePorts
from cluster.serving.app import REPLICA_DEPLOYMENT
from tests.waiting import wait_until

_BIN = Path(sys.executable).parent


class DeployedCluster:
    """log_path takes what Ray prints. Its ports and folders are its own."""

    def __init__(self, log_path: Path) -> None:
        ports = FreePorts()
        self.port, dashboard_port = ports(), ports()
        self._dashboard = f"http://127.0.0.1:{dashboard_port}"
        self.base_url = f"http://127.0.0.1:{self.port}"
        self._log_path = log_path
        self._folder = tempfile.TemporaryDirectory(prefix="wld-", dir="/tmp")  # short: Ray's sockets lie there
        self._environment = os.environ | ray_environment(ServeConfig(port=self.port), Path(self._folder.name))
        numbers = {
            "port": ports(),
            "dashboard-port": dashboard_port,
            "dashboard-agent-listen-port": ports(),
            "dashboard-agent-grpc-port": ports(),
            "runtime-env-agent-port": ports(),
            "metrics-export-port": ports(),
            "ray-client-server-port": ports(),
            "num-cpus": 4,
            "object-store-memory": 100 * 2**20,
        }
        self._command = [
            _BIN / "ray", "start", "--head", "--block", "--disable-usage-stats", "--include-dashboard=true",
            "--node-ip-address=127.0.0.1", f"--temp-dir={self._folder.name}/ray",
            *(f"--{name}={number}" for name, number in numbers.items()),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once Ray takes configurations."""
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        wait_until(self._answers, "Ray's dashboard answers")

    def deploy(self, settings: Mapping[str, Any], num_replicas: int) -> None:
        """`serve deploy` of these settings of ServeConfig. Raises CalledProcessError where they are refused."""
        config = {
            "proxy_location": "EveryNode",
            "http_options": {"host": "127.0.0.1", "port": self.port, "keep_alive_timeout_s": KEEP_ALIVE_SECONDS},
            "applications": [
                {
                    "name": "warmlane",
                    "route_prefix": "/",
                    "import_path": "cluster.serving.app:build_app",
                    "args": dict(settings),
                    "deployments": [{"name": REPLICA_DEPLOYMENT, "num_replicas": num_replicas}],
                }
            ],
        }
        path = Path(self._folder.name) / "serve.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [_BIN / "serve", "deploy", path, "--address", self._dashboard]
        subprocess.run(command, check=True, capture_output=True, env=self._environment)

    def running(self) -> dict[str, set[str]]:
        """Deployment -> ids of its replicas, while all that it has are running; empty while something is going on."""
        application = self._details().get("applications", {}).get("warmlane", {})
        found: dict[str, set[str]] = {}
        for name, deployment in application.get("deployments", {}).items():
            if deployment["status"] != "HEALTHY" or any(item["state"] != "RUNNING" for item in deployment["replicas"]):
                return {}
            found[name] = {item["replica_id"] for item in deployment["replicas"]}
        return found

    def wait_running(self, num_replicas: int, old: Collection[str] = ()) -> dict[str, set[str]]:
        """Once these many engines, none of them an old one, are all there is."""

        def found() -> dict[str, set[str]] | None:
            now = self.running()
            replicas = now.get(REPLICA_DEPLOYMENT, set())
            return now if len(replicas) == num_replicas and not replicas & set(old) else None

        return wait_until(found, f"{num_replicas} new replicas run", 180.0)  # type: ignore[return-value]

    def stop(self) -> None:
        if self._process is not None:
            started = psutil.Process(self._process.pid).children(recursive=True)
            for process in [*started, self._process]:  # in no order: Ray's own takes half a minute
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(started, timeout=20.0)
            self._process.wait(20)
        self._folder.cleanup()

    def _details(self) -> dict[str, Any]:
        """What `serve status` shows, from where it asks for it."""
        told: dict[str, Any] = httpx.get(f"{self._dashboard}/api/serve/applications/", timeout=30.0).json()
        return told

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"Ray ended:\n{self._log_path.read_text()[-2000:]}")
        try:
            return isinstance(self._details(), dict)
        except (httpx.HTTPError, ValueError):
            return False
