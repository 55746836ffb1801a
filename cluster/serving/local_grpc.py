"""What each of Ray's worker processes does before its actor (`worker_process_setup_hook`)."""

from typing import Any

_ALL_INTERFACES = "[::]:0"


def keep_grpc_local() -> None:
    """A server that asks for any port of all interfaces gets one of loopback instead.

    Ray Serve's replicas open such a gRPC port, which unpickles what anybody sends, and no setting closes it. In a
    cluster on one machine nobody else needs it.
    """
    from grpc.aio._server import Server  # grpc.aio.Server is only its interface

    bind = Server.add_insecure_port

    def add_insecure_port(self: Any, address: str) -> int:
        return int(bind(self, "127.0.0.1:0" if address == _ALL_INTERFACES else address))

    Server.add_insecure_port = add_insecure_port
