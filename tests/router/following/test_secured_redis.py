"""Routers and replicas through a Redis that asks for a password or speaks TLS."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from router.ladder import Rung
from router.prefix_router import PrefixRouter
from router.running_set import RunningSet
from tests.router.routers import PublishedReplica, make_router, request, tokens
from tests.valkey_process import ValkeyProcess
from tests.waiting import wait_until

PROMPT = tokens("prompt", 200)
PASSWORD = "correct-horse"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def follow(stack: ExitStack, replica_url: str, router_url: str) -> tuple[PublishedReplica, PrefixRouter]:
    replica, running = PublishedReplica(replica_url, "replica-a"), RunningSet()
    running.replace(frozenset({"replica-a"}))
    replica.publisher.start()
    stack.callback(replica.publisher.stop)
    router = make_router(router_url, running, "ingress-1")
    router.start()
    stack.callback(router.stop)
    replica.compute(PROMPT)
    return replica, router


def expect_warm(router: PrefixRouter) -> None:
    wait_until(
        lambda: router.route(request(PROMPT)).predicted_hit_tokens == 192,
        "the router knows what the replica holds",
    )


def test_with_its_password(stack: ExitStack) -> None:
    server = ValkeyProcess(password=PASSWORD)
    stack.callback(server.close)
    server.start()
    _, router = follow(stack, server.url, server.url)
    expect_warm(router)


def test_with_a_wrong_password_requests_are_routed_all_the_same(stack: ExitStack) -> None:
    server = ValkeyProcess(password=PASSWORD)
    stack.callback(server.close)
    server.start()
    _, router = follow(stack, server.url, server.url.replace(PASSWORD, "wrong"))
    decision = router.route(request(PROMPT))
    assert decision.replica_id == "replica-a"
    assert decision.rung != Rung.FRESH


def tls_server(folder: Path) -> str:
    """Path of a Redis server that speaks TLS, with a certificate for localhost in `folder`; skips where none is."""
    server, openssl = shutil.which("redis-server"), shutil.which("openssl")
    if server is None or openssl is None:
        pytest.skip("needs redis-server and openssl (Debian packages)")
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*command, *files], cwd=folder, check=True, capture_output=True)
    return server


def test_over_tls_with_a_password(stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMLANE_TEST_REDIS", tls_server(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    files = ("--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate)
    server = ValkeyProcess("--tls-port", str(port), *files, "--tls-auth-clients", "no", password=PASSWORD)
    stack.callback(server.close)
    server.start()
    url = f"rediss://:{PASSWORD}@localhost:{port}/0?ssl_ca_certs={certificate}"
    _, router = follow(stack, url, url)
    expect_warm(router)


def test_a_certificate_that_nobody_vouches_for_is_not_trusted(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARMLANE_TEST_REDIS", tls_server(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    server = ValkeyProcess(
        "--tls-port", str(port), "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-auth-clients", "no",
        "--tls-ca-cert-file", certificate,
    )  # fmt: skip
    stack.callback(server.close)
    server.start()
    _, router = follow(stack, server.url, f"rediss://localhost:{port}/0")
    decision = router.route(request(PROMPT))
    assert (decision.replica_id, decision.predicted_hit_tokens) == ("replica-a", 0)
    assert decision.rung != Rung.FRESH
