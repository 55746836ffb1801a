"""What Ray runs in place of haproxy: keeps it on loopback and lets it die with its manager.

Ray's generated configuration binds HAProxy's metrics and stats ports on all interfaces, and no setting changes that.
Ray does take the path of the binary (RAY_SERVE_HAPROXY_BINARY_PATH): this script stands there, rewrites the two lines
in the configuration file, which Ray writes anew before each start, and becomes haproxy under the same pid.
Also run where nothing is installed: standard library only.
"""

import ctypes
import os
import re
import signal
import sys
from pathlib import Path

BINARY_VARIABLE = "HAPROXY_LAUNCHER_BINARY"
_PR_SET_PDEATHSIG = 1
_ALL_INTERFACES = re.compile(r"^(\s*bind\s+)(?:\*)?:(\d+)", re.MULTILINE)
_STATS_SOCKET_MODE = re.compile(r"(stats socket \S+ mode )666")


def keep_local(configuration: str) -> str:
    """Binds without an address go to loopback, and the admin socket to its owner.

    The API's own bind is of another kind: `bind HOST:PORT` as `--host` says, and `bind *:PORT` where that is 0.0.0.0;
    its section is named http_frontend and stays as it is.
    """
    sections = re.split(r"(?m)^(?=\S)", configuration)
    return "".join(
        section
        if section.startswith("frontend http_frontend")
        else _STATS_SOCKET_MODE.sub(r"\g<1>600", _ALL_INTERFACES.sub(r"\g<1>127.0.0.1:\2", section))
        for section in sections
    )


def main() -> None:
    arguments = sys.argv[1:]
    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        path.write_text(keep_local(path.read_text()))
    # Ray stops HAProxy itself; this is for a manager that was killed, which would leave it holding the port.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    binary = os.environ[BINARY_VARIABLE]
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main()
