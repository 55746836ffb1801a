"""Socket options of side channels."""

import asyncio
import socket

_IDLE_SECONDS, _INTERVAL_SECONDS, _PROBES = 10, 5, 3


def watch_peer(transport: asyncio.BaseTransport) -> None:
    """The kernel ends a connection whose other machine has vanished; a process that dies ends it at once anyway."""
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Names as Linux has them; a system without them keeps its own times.
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", (_IDLE_SECONDS + _INTERVAL_SECONDS * _PROBES) * 1000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
