"""A real HAProxy, started as Ray starts it: by the launcher, from a manager."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

from cluster.api.limits import KEEP_ALIVE_SECONDS
from cluster.haproxy.settings import haproxy_environment
from cluster.machine.free_ports import FreePorts
from tests.waiting import wait_until

HOST = "127.0.0.2"
MakeConfiguration = Callable[[Path, int, int, int], str]
"""Folder and the ports of the API, of the metrics and of the stats -> configuration."""


def listening(pid: int) -> set[tuple[str, int]]:
    connections = psutil.Process(pid).net_connections("tcp")
    return {(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN}


def has_ended(pid: int) -> bool:
    """Also where nobody has asked yet how a process ended whose parent is gone."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class LaunchedHaproxy:
    def __init__(self, folder: Path, binary: str, make_configuration: MakeConfiguration) -> None:
        ports = FreePorts()
        environment = haproxy_environment(binary, HOST, folder, ports)
        self.metrics, self.stats = (int(environment[f"RAY_SERVE_HAPROXY_{name}_PORT"]) for name in ("METRICS", "STATS"))
        self.port = ports()
        self.configuration = folder / "haproxy.cfg"
        self.configuration.write_text(make_configuration(folder, self.port, self.metrics, self.stats))
        code = "import subprocess, sys, time; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); time.sleep(600)"
        self.command = [environment["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f", str(self.configuration)]
        self.manager = subprocess.Popen(
            [sys.executable, "-c", code, *self.command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | environment,
        )
        assert self.manager.stdout is not None
        self.pid = int(self.manager.stdout.readline())

    def wait_listening(self) -> None:
        wait_until(lambda: len(listening(self.pid)) == 3)

    def kill_manager(self) -> None:
        self.manager.send_signal(signal.SIGKILL)
        self.manager.wait()
        assert self.manager.stdout is not None
        self.manager.stdout.close()
        wait_until(lambda: has_ended(self.pid))


def rays_configuration(folder: Path, port: int, metrics: int, stats: int, *, servers: dict[str, int]) -> str:
    """What Ray itself writes for one application with ingresses of those ports on loopback.

    Without servers it is what Ray writes before it knows of any application.
    """
    config = HAProxyConfig(
        socket_path=str(folder / "a"),
        server_state_base=str(folder),
        server_state_file=str(folder / "state"),
        metrics_port=metrics,
        stats_port=stats,
        metrics_enabled=False,
        http_options=HTTPOptions(host="127.0.0.1", port=port, keep_alive_timeout_s=KEEP_ALIVE_SECONDS),
        has_received_routes=True,
        has_received_servers=True,
    )
    backend = BackendConfig(
        name="http-app",
        path_prefix="/",
        app_name="app",
        servers=[ServerConfig(name=name, host="127.0.0.1", port=server) for name, server in servers.items()],
    )
    path = folder / "rays.cfg"
    HAProxyApi(config, {"http-app": backend} if servers else {}, str(path))._generate_config_file_internal()
    return path.read_text()
