"""What Ray runs in place of haproxy: changes the configuration (`haproxy_configuration`), then becomes HAProxy.

Ray takes the path of the binary (RAY_SERVE_HAPROXY_BINARY_PATH) and writes the configuration anew before each start, so
this stands there and keeps its pid. HAProxy dies with its manager. It runs with the standard library alone.
"""

import ctypes
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from cluster.haproxy.configuration import amend

BINARY_VARIABLE = "HAPROXY_LAUNCHER_BINARY"
HOST_VARIABLE = "HAPROXY_LAUNCHER_HOST"
ERRORS_VARIABLE = "HAPROXY_LAUNCHER_ERRORS"
"""Path of the lines for `defaults` that say what HAProxy answers itself."""
_PR_SET_PDEATHSIG = 1


def launcher_script() -> str:
    """A shell script that launches HAProxy by this module, whatever folder and environment Ray starts it in."""
    root = Path(__file__).parents[2]
    # -I -S: neither the user's site packages nor PYTHON* variables can get between Ray and HAProxy.
    start = f"import sys; sys.path.append({str(root)!r}); from {__name__} import main; main()"
    return f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S -c {shlex.quote(start)} "$@"\n'


def main() -> None:
    arguments = sys.argv[1:]
    if "-f" in arguments:
        _amend_file(Path(arguments[arguments.index("-f") + 1]), os.environ)
    # Ray stops HAProxy itself; this is for a manager that was killed, which would leave it holding the port.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    binary = os.environ[BINARY_VARIABLE]
    os.execv(binary, [binary, *arguments])


def _amend_file(path: Path, environment: Mapping[str, str]) -> None:
    errors = Path(environment[ERRORS_VARIABLE]).read_text()
    path.write_text(amend(path.read_text(), environment[HOST_VARIABLE], errors))
