"""Where a replica gives its pages away."""

import logging
import secrets
import selectors
import socket
import sys
import threading
import time

from replica.messages import PageAddress
from replica.transfer.connections import Connections, PageServerBounds, PageServerCounts
from replica.transfer.rate_limit import RateLimit
from replica.transfer.served_connection import ServedConnection, Serving
from replica.transfer.timed_socket import TimedSocket
from replica.transfer.transfer import PageSource

logger = logging.getLogger(__name__)

_BACKLOG = 64
_JOIN_SECONDS = 5.0
_PAUSE_SECONDS = 0.1


class PageServer:
    """Serves in threads of its own, one for each connection, so that who reads slowly holds nobody else up."""

    def __init__(
        self, secret: bytes, replica_id: str, source: PageSource, host: str, bounds: PageServerBounds | None = None
    ):
        """Listens from now on. secret: the cluster's. host: a numeric address of this machine that peers can reach.

        Raises OSError where nothing can listen there.
        """
        bounds = bounds or PageServerBounds()
        self._connections = Connections(bounds)
        self._stopping = threading.Event()
        self._serving = Serving(
            secret, replica_id, source, bounds, self._connections, RateLimit(bounds.bytes_per_second), self._stopping
        )
        self._threads: dict[ServedConnection, threading.Thread] = {}
        self._lock = threading.Lock()  # of the threads
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        remote = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        local, name = _listen_locally()
        self.address = PageAddress(replica_id, host, remote.getsockname()[1], name)
        self._wake, woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(woken, selectors.EVENT_READ)
        for listening in (remote, local):
            if listening is not None:
                listening.setblocking(False)
                self._selector.register(listening, selectors.EVENT_READ, data=listening is local)
        self._acceptor = threading.Thread(target=self._accept, name="page-server", daemon=True)
        self._acceptor.start()

    def counts(self) -> PageServerCounts:
        """As of now; a copy."""
        return self._connections.counts()

    @property
    def num_pulls(self) -> int:
        """Under way now."""
        return self._connections.num_at_work

    def close(self) -> None:
        """Breaks off what is being served and returns when that has ended, or after some seconds where `read_page` does
        not return. Any number of times."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._wake.close()
        self._acceptor.join(_JOIN_SECONDS)
        with self._lock:
            threads = dict(self._threads)
        for connection in threads:
            connection.shut()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in threads.values():
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _accept(self) -> None:
        while not self._stopping.is_set():
            for key, _ in self._selector.select():
                if key.data is not None and not self._stopping.is_set():
                    self._take(key.fileobj, is_local=key.data)  # type: ignore[arg-type]
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _take(self, listening: socket.socket, is_local: bool) -> None:
        try:
            sock, _ = listening.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError | ConnectionError):  # such as too many open files
                logger.warning("no connection for pages can be taken: %s", error)
                self._stopping.wait(_PAUSE_SECONDS)
            return
        timed = TimedSocket(sock, time.monotonic() + self._serving.bounds.handshake_seconds)
        if not is_local:
            timed.watch_peer()
        connection = ServedConnection(timed, is_local, self._serving, self._forget)
        thread = threading.Thread(target=connection.run, name="page-server-connection", daemon=True)
        with self._lock:
            self._threads[connection] = thread
        self._connections.add(connection)
        thread.start()

    def _forget(self, connection: ServedConnection) -> None:
        with self._lock:
            self._threads.pop(connection, None)


def _listen_locally() -> tuple[socket.socket | None, str]:
    """A name that leaves no file behind and that nobody can guess; whoever is not on this node finds nothing there."""
    if sys.platform != "linux":
        return None, ""
    name = f"warmlane-pages-{secrets.token_hex(16)}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind("\0" + name)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        logger.warning("pages go over TCP on this node too: %s", error)
        return None, ""
    return listening, name
