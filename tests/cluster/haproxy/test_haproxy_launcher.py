"""HAProxy of one cluster: on loopback, with its own ports, and never longer there than its manager."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.haproxy.configuration import amend_listeners
from cluster.haproxy.settings import check_rules, haproxy_environment, main
from cluster.local.ray_runtime import put_into_environment
from cluster.machine.free_ports import FreePorts
from cluster.serving.app import build_app
from tests.cluster.haproxy.launched_haproxy import HOST, LaunchedHaproxy, listening

CONFIGURATION = """global
    stats socket {folder}/a mode 666 level admin expose-fd listeners
defaults
    mode http
    option abortonclose
    option splice-request
    option splice-response
    timeout client 60s
    timeout connect 5s
    timeout server 60s
frontend prometheus
    bind :{metrics}
    http-request use-service prometheus-exporter if {{ path /metrics }}
frontend http_frontend
    bind {host}:{port}
    default_backend ingress
backend ingress
    server ingress 127.0.0.1:{server}
listen stats
  bind *:{stats}
  stats enable
"""


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("::1", "[::1]")])
def test_only_the_api_may_listen_beyond_loopback(host: str, address: str) -> None:
    amended = amend_listeners(
        CONFIGURATION.format(folder="/x", metrics=1, stats=2, port=3, server=4, host="127.0.0.1"), host
    )
    assert "bind 127.0.0.1:1\n" in amended
    assert "bind 127.0.0.1:2\n" in amended
    assert f"bind {address}:3\n" in amended
    assert "mode 600 level admin" in amended
    assert amend_listeners(amended, host) == amended  # Ray may start it twice on one file


def test_all_ports_and_paths_of_two_clusters_are_their_own(tmp_path: Path) -> None:
    """The ingresses' ranges count too: HAProxy would send to another cluster's process once one of ours is gone."""
    ports = FreePorts()
    for name in "ab":
        (tmp_path / name).mkdir()
    first, second = (haproxy_environment("haproxy", "127.0.0.1", tmp_path / name, ports) for name in "ab")
    taken: list[int] = []
    for environment in (first, second):
        low, high = (int(environment[f"RAY_SERVE_DIRECT_INGRESS_{end}_HTTP_PORT"]) for end in ("MIN", "MAX"))
        taken += range(low, high)
        taken += [
            int(value)
            for name, value in environment.items()
            if name.endswith("_PORT") and not name.startswith("RAY_SERVE_DIRECT_INGRESS")
        ]
    assert len(set(taken)) == len(taken) == 2 * (200 + 4)
    paths = [key for key in first if key.endswith(("_PATH", "_LOC", "_BASE", "_FILE"))]
    assert [key for key in paths if first[key] == second[key]] == []


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10.0)
        yield listener


@pytest.fixture
def launched(folder: Path, binary: str, server: socket.socket) -> Iterator[LaunchedHaproxy]:
    def configuration(folder: Path, port: int, metrics: int, stats: int) -> str:
        values = {"folder": folder, "port": port, "metrics": metrics, "stats": stats, "host": "127.0.0.1"}
        return CONFIGURATION.format(server=server.getsockname()[1], **values)

    haproxy = LaunchedHaproxy(folder, binary, configuration)
    try:
        haproxy.wait_listening()
        yield haproxy
    finally:
        haproxy.kill_manager()


def test_the_launcher_becomes_haproxy_on_loopback_and_dies_with_its_manager(
    launched: LaunchedHaproxy, binary: str
) -> None:
    assert listening(launched.pid) == {
        ("127.0.0.1", launched.metrics),
        ("127.0.0.1", launched.stats),
        (HOST, launched.port),
    }
    # Ray knows its HAProxy by the path of the configuration in its command line.
    assert psutil.Process(launched.pid).cmdline() == [binary, *launched.command[1:]]
    launched.kill_manager()


def heard_of_end(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize("body_bytes", [100, 100_000])
@pytest.mark.parametrize("apart", [False, True], ids=["one packet", "body apart"])
def test_case_24_the_server_hears_of_a_client_that_left_before_its_answer(
    launched: LaunchedHaproxy, server: socket.socket, body_bytes: int, apart: bool
) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % body_bytes
    body = b"x" * body_bytes
    with socket.create_connection((HOST, launched.port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(head if apart else head + body)
        with server.accept()[0] as request:
            request.settimeout(5.0)
            if apart:
                client.sendall(body)
            received = b""
            while not received.endswith(b"\r\n\r\n" + body):
                received += request.recv(65536)
            client.shutdown(socket.SHUT_RDWR)
            assert heard_of_end(request)


def test_haproxy_without_our_rules_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_rules({})
    check_rules({"RAY_SERVE_ENABLE_HA_PROXY": "0"})
    for name in ("HAPROXY_LAUNCHER_BINARY", "RAY_SERVE_HAPROXY_BINARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    with pytest.raises(ValueError, match="RAY_SERVE_ENABLE_HA_PROXY=1 alone runs HAProxy without Warmlane's rules"):
        build_app({})
    ours = haproxy_environment("/usr/sbin/haproxy", "127.0.0.1", tmp_path, FreePorts())
    check_rules(ours)
    with pytest.raises(ValueError, match="without Warmlane's rules"):
        check_rules(ours | {"RAY_SERVE_HAPROXY_BINARY_PATH": "/usr/sbin/haproxy"})


def test_the_users_own_haproxy_runs_behind_the_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = haproxy_environment("/usr/sbin/haproxy", "127.0.0.1", tmp_path, FreePorts())
    environment = {"RAY_SERVE_HAPROXY_BINARY_PATH": "/usr/sbin/haproxy", "RAY_SERVE_HAPROXY_MAXCONN": "7"}
    monkeypatch.setattr("os.environ", environment)
    put_into_environment(ours)
    check_rules(environment)
    assert environment["RAY_SERVE_HAPROXY_MAXCONN"] == "7"


def test_a_shell_reads_the_environment_for_ray_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["haproxy_transport", "127.0.0.1", str(tmp_path)])
    assert main() == 0
    script = capsys.readouterr().out + "env"
    shown = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin"})
    check_rules(dict(line.split("=", 1) for line in shown.stdout.splitlines()))
    monkeypatch.setattr("sys.argv", ["haproxy_transport", "127.0.0.1", str(tmp_path / "none")])
    assert main() == 1
