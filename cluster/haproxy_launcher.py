"""What Ray runs in place of haproxy: only the API may listen beyond loopback, and it dies with its manager.

Ray's generated configuration binds HAProxy's metrics and stats ports on all interfaces, and no setting changes that.
Nor can it listen elsewhere than the HTTP ports of the replicas behind it do, which are nobody else's business. Ray does
take the path of the binary (RAY_SERVE_HAPROXY_BINARY_PATH): this script stands there, rewrites the lines in question in
the configuration file, which Ray writes anew before each start, and becomes haproxy under the same pid.
Also run where nothing is installed: standard library only.
"""

import ctypes
import os
import re
import signal
import sys
from pathlib import Path

BINARY_VARIABLE = "HAPROXY_LAUNCHER_BINARY"
HOST_VARIABLE = "HAPROXY_LAUNCHER_HOST"
_PR_SET_PDEATHSIG = 1
_BIND = re.compile(r"^(\s*bind\s+)\S*:(\d+)", re.MULTILINE)
_STATS_SOCKET_MODE = re.compile(r"(stats socket \S+ mode )666")


def rebind(configuration: str, host: str) -> str:
    """The API listens on `host`, everything else on loopback, and the admin socket is its owner's alone."""
    address = f"[{host}]" if ":" in host else host
    sections = re.split(r"(?m)^(?=\S)", configuration)
    bound = (
        _BIND.sub(rf"\g<1>{address if section.startswith('frontend http_frontend') else '127.0.0.1'}:\2", section)
        for section in sections
    )
    return _STATS_SOCKET_MODE.sub(r"\g<1>600", "".join(bound))


def main() -> None:
    arguments = sys.argv[1:]
    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        path.write_text(rebind(path.read_text(), os.environ[HOST_VARIABLE]))
    # Ray stops HAProxy itself; this is for a manager that was killed, which would leave it holding the port.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    binary = os.environ[BINARY_VARIABLE]
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main()
