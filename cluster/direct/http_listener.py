"""An HTTP server inside a process that Ray runs."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from cluster.api.limits import KEEP_ALIVE_SECONDS


class HttpListener:
    """Listens from the first time that the address is asked for, on a port that the kernel chooses.

    Belongs to the event loop that asks.
    """

    def __init__(self, app: ASGIApp, host: str):
        """host: an address of this machine that HAProxy can reach."""
        self._app = app
        self._host = host
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    def address(self) -> tuple[str, int]:
        """Host and port. Raises OSError where nothing can listen on the host."""
        if self._socket is None:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            self._socket = socket.create_server((self._host, 0), family=family, backlog=1024)
            self._server = _Server(
                uvicorn.Config(
                    self._app,
                    log_config=None,
                    access_log=False,
                    lifespan="off",
                    ws="none",
                    server_header=False,
                    timeout_keep_alive=KEEP_ALIVE_SECONDS,
                )
            )
            self._serving = asyncio.get_running_loop().create_task(self._server.serve([self._socket]))
        host, port = self._socket.getsockname()[:2]
        return host, port

    async def close(self) -> None:
        """Takes no new requests, and returns when those that came are answered."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are Ray's affair."""
        yield
