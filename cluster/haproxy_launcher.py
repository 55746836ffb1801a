"""What Ray runs in place of haproxy, to change the configuration that Ray generates and no setting of Ray changes.

- It binds HAProxy's metrics and stats ports on all interfaces. Only the API may listen beyond loopback, and it alone,
  while Ray would bind the HTTP ports of the replicas behind it to the same host.
- It asks for splicing. If a body came in a packet of its own and the client leaves before the answer begins, HAProxy
  (2.8.25 at least) then spins and never tells the server (24).

Ray takes the path of the binary (RAY_SERVE_HAPROXY_BINARY_PATH): this script stands there, changes those lines in
the configuration file, which Ray writes anew before each start, and becomes haproxy under the same pid. It dies with
its manager. Also run where nothing is installed: standard library only.
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
_SPLICE = re.compile(r"^\s*option splice-\w+\n", re.MULTILINE)
_STATS_SOCKET_MODE = re.compile(r"(stats socket \S+ mode )666")


def amend(configuration: str, host: str) -> str:
    """The API on `host`, everything else on loopback, the admin socket its owner's alone, nothing spliced."""
    address = f"[{host}]" if ":" in host else host
    sections = re.split(r"(?m)^(?=\S)", _SPLICE.sub("", configuration))
    bound = (
        _BIND.sub(rf"\g<1>{address if section.startswith('frontend http_frontend') else '127.0.0.1'}:\2", section)
        for section in sections
    )
    return _STATS_SOCKET_MODE.sub(r"\g<1>600", "".join(bound))


def main() -> None:
    arguments = sys.argv[1:]
    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        path.write_text(amend(path.read_text(), os.environ[HOST_VARIABLE]))
    # Ray stops HAProxy itself; this is for a manager that was killed, which would leave it holding the port.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    binary = os.environ[BINARY_VARIABLE]
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main()
