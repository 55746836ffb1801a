"""What the command line says where the other end is no cluster."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from cluster.commands.cli import main
from cluster.commands.cluster_call import ClusterRefused, ask_cluster


class _Stranger(BaseHTTPRequestHandler):
    status, body = 404, b"<html>no such page</html>"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.status)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_POST = _answer

    def log_message(self, *args: object) -> None:
        """Silent."""


@pytest.fixture
def stranger() -> Iterator[HTTPServer]:
    """A web server that is not Warmlane; `handler` may be changed."""
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (_Stranger,), {}))
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"<html>no such page</html>"),
        (404, b'{"error": {"message": "Not Found: GET /admin/policy", "type": "invalid_request_error"}}'),
        (405, b'{"detail": "Method Not Allowed"}'),
        (500, b'{"error": "boom"}'),
        (502, b""),
        (200, b"<html>hello</html>"),
        (200, b"{}"),
        (200, b"[1]"),
        (302, b""),
    ],
)
@pytest.mark.parametrize("arguments", [["show"], ["set", "lmetric"]])
def test_an_answer_that_no_cluster_gives_is_named_as_such(
    capsys: pytest.CaptureFixture[str], stranger: HTTPServer, status: int, body: bytes, arguments: list[str]
) -> None:
    stranger.RequestHandlerClass.status = status  # type: ignore[attr-defined]
    stranger.RequestHandlerClass.body = body  # type: ignore[attr-defined]
    url = f"http://127.0.0.1:{stranger.server_port}"
    assert main(["policy", *arguments, "--url", url + "/"]) == 1
    expected = f"warmlane: {url} answered {status} to /admin/policy: is this a Warmlane cluster?\n"
    assert capsys.readouterr().err == expected


def test_the_words_of_a_cluster_that_refuses_are_handed_on(stranger: HTTPServer) -> None:
    stranger.RequestHandlerClass.status = 400  # type: ignore[attr-defined]
    stranger.RequestHandlerClass.body = b'{"error": {"message": "no such policy"}}'  # type: ignore[attr-defined]
    with pytest.raises(ClusterRefused, match=r"^no such policy$"):
        ask_cluster(f"http://127.0.0.1:{stranger.server_port}", "/admin/policy", {})


@pytest.mark.parametrize("url", ["nonsense", "127.0.0.1:8000", "ftp://127.0.0.1", ""])
def test_a_url_without_its_scheme_is_refused(url: str) -> None:
    with pytest.raises(ClusterRefused, match=f"--url must begin with http:// or https://, got '{url}'"):
        ask_cluster(url, "/admin/policy")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://", "http://[::1", "http://a" + "b" * 80 + ".invalid"])
def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert main(["policy", "show", "--url", url]) == 1
    error = capsys.readouterr().err
    assert error.startswith("warmlane: ")
    assert "gave no answer" in error
    assert error.count("\n") == 1


def test_a_key_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterRefused, match=r"cannot read the key file .*none: No such file"):
        ask_cluster("http://127.0.0.1:1", "/admin/policy", key_file=tmp_path / "none")
