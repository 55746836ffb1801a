"""What clients hear of HAProxy itself, over the configuration that Ray writes: errors as the API's, and idle
connections that last."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from cluster.api.limits import KEEP_ALIVE_SECONDS
from cluster.haproxy.configuration import amend_errors, amend_requests
from cluster.haproxy.settings import error_rules
from tests.cluster.haproxy.launched_haproxy import HOST, LaunchedHaproxy, rays_configuration
from tests.cluster.openai_schema import check
from tests.waiting import wait_until

TOO_LARGE = b"GET / HTTP/1.1\r\nHost: x\r\nX-Large: " + b"a" * 65536 + b"\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
MakeHaproxy = Callable[..., LaunchedHaproxy]


@pytest.fixture
def haproxy(folder: Path, binary: str) -> Iterator[MakeHaproxy]:
    """Starts one for each call. servers: ports of the ingresses by name. edit: changes what Ray has written."""
    started: list[LaunchedHaproxy] = []

    def start(servers: dict[str, int], edit: Callable[[str], str] = lambda text: text) -> LaunchedHaproxy:
        render = partial(rays_configuration, servers=servers)
        started.append(LaunchedHaproxy(folder, binary, lambda *ports: edit(render(*ports))))
        started[-1].wait_listening()
        return started[-1]

    yield start
    for each in started:
        each.kill_manager()


@contextmanager
def listening_server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10.0)
        yield listener


def unchecked(configuration: str) -> str:
    """Without health checks, which a server of these tests would have to answer."""
    return configuration.replace(" check observe layer4", " #").replace(" check\n", "\n")


def waiting_for_bodies(configuration: str, time: str) -> str:
    """HAProxy waits for the whole body, as where an operator adds such a rule."""
    rule = f"    http-request wait-for-body time {time}\n    use_backend "
    return unchecked(configuration).replace("    use_backend ", rule, 1)


def answer(haproxy: LaunchedHaproxy, request: bytes) -> tuple[http.client.HTTPResponse, bytes]:
    with socket.create_connection((HOST, haproxy.port), timeout=10.0) as client:
        client.sendall(request)
        response = http.client.HTTPResponse(client)
        response.begin()
        return response, response.read()


def refused(haproxy: LaunchedHaproxy, request: bytes, status: int) -> http.client.HTTPResponse:
    """The error has the official form."""
    response, body = answer(haproxy, request)
    assert response.status == status
    assert response.headers["content-type"] == "application/json"
    check("ErrorResponse", json.loads(body))
    return response


@pytest.mark.parametrize("request_bytes", [b"no HTTP at all\r\n\r\n", TOO_LARGE], ids=["malformed", "64 KiB header"])
def test_57_what_haproxy_cannot_read_is_refused(haproxy: MakeHaproxy, request_bytes: bytes) -> None:
    """In HAProxy's own words: while it has read no head of a request it has no configured answers."""
    response, _ = answer(haproxy({"ingress": 1}, unchecked), request_bytes)
    assert response.status == 400


def test_33b_no_ingress_is_a_503_that_says_when_to_come_back(haproxy: MakeHaproxy) -> None:
    with listening_server() as server:
        port = server.getsockname()[1]  # nobody listens there any more
    response = refused(haproxy({"ingress": port}, unchecked), b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 503)
    assert response.headers["retry-after"] == "1"


def test_33b_before_there_is_an_application_it_is_a_503_too(haproxy: MakeHaproxy) -> None:
    response = refused(haproxy({}), b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 503)
    assert response.headers["retry-after"] == "1"


def test_33b_an_ingress_that_ends_unanswered_is_a_502(haproxy: MakeHaproxy) -> None:
    with listening_server() as server:
        running = haproxy({"ingress": server.getsockname()[1]}, unchecked)
        with socket.create_connection((HOST, running.port), timeout=10.0) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            with server.accept()[0] as request:
                assert request.recv(65536).startswith(b"GET /")
            response = http.client.HTTPResponse(client)
            response.begin()
            assert (response.status, response.headers["content-type"]) == (502, "application/json")
            check("ErrorResponse", json.loads(response.read()))


def test_33b_a_body_that_does_not_come_is_a_408(haproxy: MakeHaproxy) -> None:
    def edit(configuration: str) -> str:
        return waiting_for_bodies(configuration, "100ms")

    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
    refused(haproxy({"ingress": 1}, edit), head, 408)


def test_33b_an_ingress_that_says_nothing_is_a_504(haproxy: MakeHaproxy) -> None:
    def edit(configuration: str) -> str:
        return unchecked(configuration).replace("defaults\n", "defaults\n    timeout server 100ms\n", 1)

    with listening_server() as server:
        running = haproxy({"ingress": server.getsockname()[1]}, edit)
        refused(running, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 504)


def test_rays_own_error_pages_are_replaced_once(folder: Path) -> None:
    written = rays_configuration(folder, 1, 2, 3, servers={"ingress": 4})
    assert "errorfile" in written
    amended = amend_errors(written, error_rules())
    assert "errorfile" not in amended
    assert amended.count("http-error status 503") == 1
    assert amend_errors(amended, error_rules()) == amended  # Ray may start it twice on one file


@pytest.mark.parametrize("method", [b"FROB", b"CONNECT", b"TRACE", b"PROPFIND"])
def test_33b_a_method_that_nothing_takes_is_a_405(haproxy: MakeHaproxy, method: bytes) -> None:
    target = b"x:80" if method == b"CONNECT" else b"/v1/models"
    refused(haproxy({"ingress": 1}, unchecked), method + b" " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n", 405)


def test_53_the_ingress_gets_a_deadline_under_a_name_that_ray_does_not_know(haproxy: MakeHaproxy) -> None:
    """Ray would keep it before the ingress does: a stream breaks off, and the error is plain text."""
    with listening_server() as server:
        running = haproxy({"ingress": server.getsockname()[1]}, unchecked)
        with socket.create_connection((HOST, running.port), timeout=10.0) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Timeout-Seconds: 2,5\r\nUpgrade: websocket\r\n\r\n")
            with server.accept()[0] as request:
                lines = request.recv(65536).decode().lower().splitlines()
                request.sendall(OK)
    assert "x-warmlane-timeout-seconds: 2,5" in lines  # whole, so that the ingress refuses it
    assert not [line for line in lines if line.startswith(("x-request-timeout-seconds", "upgrade"))]


@pytest.mark.parametrize("value", [b"\xff\xfe", b"caf\xe9", "é".encode()])
def test_39_a_request_id_that_ray_cannot_read_is_a_400(haproxy: MakeHaproxy, value: bytes) -> None:
    """Ray's own parser reads it as UTF-8 and fails in plain text."""
    request = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + value + b"\r\n\r\n"
    refused(haproxy({"ingress": 1}, unchecked), request, 400)


@pytest.mark.parametrize(
    "header",
    [b"X-Request-Timeout-Seconds: " + b"1" * 9000, b"X-Request-Timeout-Seconds: 3" + b"0" * 7000,
     b"User-Agent: a\x01b", b"X-Any: \x7f", b"Authorization: Bearer \x1b"],
    ids=["long timeout", "less long timeout", "control", "delete", "escape"],
)  # fmt: skip
def test_57_headers_that_would_fail_behind_haproxy_are_a_400(haproxy: MakeHaproxy, header: bytes) -> None:
    refused(haproxy({"ingress": 1}, unchecked), b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n", 400)


def test_a_long_session_id_arrives_cut(haproxy: MakeHaproxy) -> None:
    """Encoded it is three times as long, and would not fit into HAProxy's buffer."""
    with listening_server() as server:
        running = haproxy({"ingress": server.getsockname()[1]}, unchecked)
        with socket.create_connection((HOST, running.port), timeout=10.0) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Session-Id: " + b"\xff" * 6000 + b"\r\n\r\n")
            with server.accept()[0] as request:
                lines = request.recv(65536).decode().lower().splitlines()
                request.sendall(OK)
    assert [line for line in lines if line.startswith("x-session")] == ["x-session-id: " + "%ff" * 256]


def test_headers_that_ray_reads_as_utf_8_are_that_when_an_ingress_gets_them(haproxy: MakeHaproxy) -> None:
    given = (
        b"X-Session-Id: caf\xe9",
        b"traceparent: \xff",
        b"tracestate: a=\xff",
        b"serve_multiplexed_model_id: \xff",
        b"x-request-disconnect-disabled: ?1",
    )
    with listening_server() as server:
        running = haproxy({"ingress": server.getsockname()[1]}, unchecked)
        with socket.create_connection((HOST, running.port), timeout=10.0) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"\r\n".join(given) + b"\r\n\r\n")
            with server.accept()[0] as request:
                lines = request.recv(65536).decode().lower().splitlines()
                request.sendall(OK)
    assert [line for line in lines if line.startswith(("x-session", "trace", "serve", "x-request"))] == [
        "x-session-id: caf%e9"
    ]


def test_requests_are_amended_once(folder: Path) -> None:
    written = rays_configuration(folder, 1, 2, 3, servers={"ingress": 4})
    amended = amend_requests(written)
    assert amended.count("deny_status 405") == 1
    assert amend_requests(amended) == amended  # Ray may start it twice on one file
    without = rays_configuration(folder, 1, 2, 3, servers={})
    assert amend_requests(without) == without


def test_56_haproxy_keeps_idle_clients_for_75_seconds_and_more(folder: Path) -> None:
    assert KEEP_ALIVE_SECONDS >= 75
    written = rays_configuration(folder, 1, 2, 3, servers={"ingress": 4})
    lines = [line.strip() for line in written.splitlines()]
    assert [line for line in lines if line.startswith("timeout http-keep-alive")] == [
        f"timeout http-keep-alive {KEEP_ALIVE_SECONDS}s"
    ]


def test_56_a_connection_that_an_ingress_closes_while_idle_is_not_used_again(haproxy: MakeHaproxy) -> None:
    """The client's connection stays, and its next request goes to the ingress over a new one."""
    with listening_server() as server:
        port = server.getsockname()[1]
        running = haproxy({"ingress": port}, unchecked)
        with socket.create_connection((HOST, running.port), timeout=10.0) as client:
            for _ in range(3):
                client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
                with server.accept()[0] as request:
                    assert request.recv(65536).startswith(b"POST /")
                    request.sendall(OK)
                    received = b""
                    while not received.endswith(b"ok"):
                        received += client.recv(65536)
                wait_until(lambda: not connections_to(running.pid, port))


def connections_to(pid: int, port: int) -> list[object]:
    return [each for each in psutil.Process(pid).net_connections("tcp") if each.raddr and each.raddr.port == port]
