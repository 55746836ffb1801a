"""Ports of one cluster."""

import errno
import socket


class PortTaken(RuntimeError):
    """Nobody can listen at the address that was asked for, or somebody else does."""


def check_free(host: str, port: int) -> None:
    """Raises PortTaken when another process holds the port or `host` is no address of this machine.

    Ray's proxies share ports (SO_REUSEPORT): without this check two clusters would share each other's traffic.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise PortTaken(
                    f"port {port} on {host} cannot be taken ({error.strerror}); choose another --port"
                ) from error
            raise PortTaken(f"host must be an address of this machine, got {host!r} ({error.strerror})") from error


class FreePorts:
    """Hands out loopback ports that nobody listens on, each once.

    Outside 10002 to 19999, where Ray's workers listen, and outside the kernel's range of outgoing ports.
    """

    def __init__(self, low: int = 20000, high: int = 29999):
        self._next = low + _offset(high - low)
        self._low, self._high = low, high

    def __call__(self) -> int:
        for _ in range(self._high - self._low):
            port, self._next = self._next, self._next + 1 if self._next < self._high else self._low
            try:
                check_free("127.0.0.1", port)
            except PortTaken:
                continue
            return port
        raise PortTaken(f"no free port between {self._low} and {self._high}")

    def span(self, num_ports: int) -> range:
        """Neighbouring ports, of which nobody listens on any and none is handed out again."""
        first = last = self()
        for _ in range(2 * (self._high - self._low)):
            if last - first + 1 == num_ports:
                return range(first, last + 1)
            port = self()
            first, last = (first if port == last + 1 else port), port
        raise PortTaken(f"no {num_ports} free ports in a row between {self._low} and {self._high}")


def _offset(num_ports: int) -> int:
    """Another start for each caller, so that two clusters that start together do not race for the same ports."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1]) * 7919 % num_ports
