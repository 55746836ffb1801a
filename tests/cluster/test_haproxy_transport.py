"""HAProxy of one cluster: on loopback, with its own ports, and never longer there than its manager."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cluster.free_ports import FreePorts
from cluster.haproxy_launcher import rebind
from cluster.haproxy_transport import find_haproxy, haproxy_environment

CONFIGURATION = """global
    stats socket {folder}/a mode 666 level admin expose-fd listeners
defaults
    mode http
    timeout client 5s
    timeout connect 5s
    timeout server 5s
frontend prometheus
    bind :{metrics}
    http-request use-service prometheus-exporter if {{ path /metrics }}
frontend http_frontend
    bind {host}:{port}
listen stats
  bind *:{stats}
  stats enable
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wlc-", dir="/tmp") as path:  # short: sockets end at 97 characters
        yield Path(path)


@pytest.fixture
def binary() -> str:
    found = find_haproxy()
    if found is None:
        pytest.skip("no haproxy runs here")
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition not reached in time"
        time.sleep(0.02)


def listening(pid: int) -> set[tuple[str, int]]:
    connections = psutil.Process(pid).net_connections("tcp")
    return {(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("::1", "[::1]")])
def test_only_the_api_may_listen_beyond_loopback(host: str, address: str) -> None:
    rebound = rebind(CONFIGURATION.format(folder="/x", metrics=1, stats=2, port=3, host="127.0.0.1"), host)
    assert "bind 127.0.0.1:1\n" in rebound
    assert "bind 127.0.0.1:2\n" in rebound
    assert f"bind {address}:3\n" in rebound
    assert "mode 600 level admin" in rebound
    assert rebind(rebound, host) == rebound  # Ray may start it twice on one file


def test_the_launcher_becomes_haproxy_on_loopback_and_dies_with_its_manager(folder: Path, binary: str) -> None:
    ports = FreePorts()
    environment = haproxy_environment(binary, "127.0.0.2", folder, ports)
    metrics, stats = (int(environment[f"RAY_SERVE_HAPROXY_{name}_PORT"]) for name in ("METRICS", "STATS"))
    port = ports()
    configuration = folder / "haproxy.cfg"
    configuration.write_text(
        CONFIGURATION.format(folder=folder, metrics=metrics, stats=stats, port=port, host="127.0.0.1")
    )
    code = "import subprocess, sys, time; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); time.sleep(600)"
    command = [environment["RAY_SERVE_HAPROXY_BINARY_PATH"], "-db", "-f", str(configuration)]
    manager = subprocess.Popen(
        [sys.executable, "-c", code, *command], stdout=subprocess.PIPE, text=True, env=os.environ | environment
    )
    try:
        assert manager.stdout is not None
        pid = int(manager.stdout.readline())
        wait_until(lambda: len(listening(pid)) == 3)
        assert listening(pid) == {("127.0.0.1", metrics), ("127.0.0.1", stats), ("127.0.0.2", port)}
        # Ray knows its HAProxy by the path of the configuration in its command line.
        assert psutil.Process(pid).cmdline() == [binary, *command[1:]]
    finally:
        manager.send_signal(signal.SIGKILL)
        manager.communicate()
    wait_until(lambda: not psutil.pid_exists(pid))


def test_two_clusters_get_other_ports_and_paths(folder: Path, binary: str) -> None:
    for name in "ab":
        (folder / name).mkdir()
    ports = FreePorts()
    first, second = (haproxy_environment(binary, "127.0.0.1", folder / name, ports) for name in "ab")
    for key in first:
        if key.endswith(("_PORT", "_PATH", "_LOC", "_BASE", "_FILE")):
            assert first[key] != second[key]
