"""Stands at the other end of a command: a web server that answers what a test wants, and notes what it was asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

Answer = tuple[int, bytes]
"""Status and body."""


class StubCluster(HTTPServer):
    """answer: what every path gets that is not in `answers`. asked: (method, path, authorization, body), in order."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answer: Answer = (200, b"{}")
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str, str | None, bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    server: StubCluster

    def _answer(self) -> None:
        asked = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.asked.append((self.command, self.path, self.headers.get("authorization"), asked))
        status, body = self.server.answers.get(self.path, self.server.answer)
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer

    def log_message(self, *args: object) -> None:
        """Silent."""


@contextmanager
def stub_cluster() -> Iterator[StubCluster]:
    with StubCluster() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
