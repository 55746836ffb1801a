"""Connections that clients keep in a pool outlast what they do in between (56)."""

import http.client
import json
import re
import socket
import time

from cluster.api.limits import KEEP_ALIVE_SECONDS
from cluster.lab.cluster_process import ClusterProcess
from tests.e2e.cluster_client import ClusterClient
from tests.e2e.running_cluster import run_folder
from tests.waiting import wait_until

IDLE_SECONDS = 8.0
"""Longer than the 5 s after which servers of this kind drop a connection unless they are told otherwise."""


class KeptConnection:
    """Asks over one connection, and fails where another one would be needed."""

    def __init__(self, port: int, path: str, body: bytes | None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._path, self._body = path, body
        self._socket: socket.socket | None = None

    def ask(self) -> None:
        method = "GET" if self._body is None else "POST"
        self._connection.request(method, self._path, self._body, {"content-type": "application/json"})
        assert self._socket in (None, self._connection.sock), "the server closed the connection"
        self._socket = self._connection.sock
        response = self._connection.getresponse()
        assert (response.status, len(response.read()) > 0) == (200, True)

    def close(self) -> None:
        self._connection.close()


def haproxy_configuration(process: ClusterProcess) -> str:
    folder = wait_until(lambda: run_folder(process), "the cluster has said where its files are")
    (path,) = (folder / "h").rglob("haproxy.cfg")
    return path.read_text()


def test_case_56_a_connection_idle_for_seconds_is_used_again(
    cluster: ClusterClient, cluster_process: ClusterProcess
) -> None:
    """Clients to HAProxy, and HAProxy to the ingress. There is no condition to poll for: that nothing happens while
    time passes is what is tested."""
    configuration = haproxy_configuration(cluster_process)
    assert set(re.findall(r"timeout http-keep-alive (\w+)", configuration)) == {f"{KEEP_ALIVE_SECONDS}s"}
    ingress_ports = re.findall(r"^\s*server \S+ 127.0.0.1:(\d+) check(?!.*backup)", configuration, re.MULTILINE)
    assert len(ingress_ports) == 1
    body = json.dumps(cluster.completion_body("Case 56", max_tokens=2)).encode()
    kept = [
        KeptConnection(cluster_process.port, "/v1/completions", body),
        KeptConnection(cluster_process.port, "/v1/models", None),
        KeptConnection(int(ingress_ports[0]), "/v1/models", None),
    ]
    for connection in kept:
        connection.ask()
    time.sleep(IDLE_SECONDS)
    for connection in kept:
        connection.ask()
        connection.close()
