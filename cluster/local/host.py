"""The process that holds Ray: `python -m cluster.local.host`, started by ClusterSupervisor.

Apart from the command line, because Ctrl-C cannot interrupt Ray's C++ code: the supervisor can end this process at any
time and clean up behind it. Orders come on standard input, messages go to MESSAGES_FD, everything else to the log.
"""

import contextlib
import logging
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from cluster.config import ServeConfig
from cluster.haproxy.settings import haproxy_complaint
from cluster.local.host_protocol import HostMessage, HostOrders
from cluster.local.ray_runtime import (
    HAPROXY_FOLDER,
    behind_haproxy,
    cause_of,
    forward_passes,
    put_into_environment,
    ray_environment,
    start_ray,
    start_serve,
    stop_serve,
)
from cluster.machine.child_processes import adopt_orphans, end_all_children
from cluster.machine.interrupts import not_while_deleting
from cluster.serving.app import cluster_spec

MESSAGES_FD_VARIABLE = "CLUSTER_HOST_MESSAGES_FD"
READY_SECONDS = 120.0
PATIENCE_SECONDS = 20.0
"""So long an HAProxy that ended while starting may be started again by Ray, and succeed."""
UNSEEN_SECONDS = 1.0
"""So long the weights may be hashed before it is a step of its own."""
STOP_SIGNAL = signal.SIGINT
"""Ray's C++ code takes SIGTERM for itself and ends the process where it stands."""

logger = logging.getLogger(__name__)


class ClusterHost:
    """Starts Ray and the application, says so, and waits to be told to stop."""

    def __init__(self, orders: HostOrders, messages_fd: int):
        self._config = ServeConfig(**orders.config)
        self._model_dir = Path(orders.model_dir)
        self._folder = Path(orders.folder)
        self._messages = os.fdopen(messages_fd, "w", buffering=1)

    def run(self) -> int:
        try:
            self._start()
            while True:
                signal.pause()
        except SystemExit:
            return 0
        except Exception as error:
            logger.exception("start-up failed")
            self._say(HostMessage("failed", cause_of([str(error)]) if str(error) else type(error).__name__))
            return 1
        finally:
            try:
                stop_serve(self._config.drain_seconds)
            finally:
                # Ray itself keeps nothing that must be saved, and its own way to stop waits ten seconds for its GCS.
                end_all_children()

    def _start(self) -> None:
        self._say(HostMessage("progress", "Starting Ray"))
        put_into_environment(ray_environment(self._config, self._folder))
        start_ray(self._config, self._folder)
        spec = cluster_spec(self._config, self._model_dir, self._hashing())
        for done, total in start_serve(self._config, spec):
            self._say(HostMessage("progress", "Loading the model into the replicas", done, total))
        self._say(HostMessage("progress", "Waiting for the API"))
        self._wait_ready()
        transport = "HAProxy" if behind_haproxy() else "Ray's Python proxy"
        self._say(HostMessage("ready", transport, forward_passes=forward_passes()))

    def _hashing(self) -> Callable[[int, int], None]:
        start = time.monotonic()

        def say(done: int, total: int) -> None:
            if time.monotonic() - start > UNSEEN_SECONDS:
                self._say(HostMessage("progress", "Hashing the model's weights", done, total, unit="bytes"))

        return say

    def _wait_ready(self) -> None:
        url = f"{self._config.local_url}/health/ready"
        # What stands in http_proxy is for the world outside: a proxy does not reach this machine's loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        answer = "nothing"
        start = time.monotonic()
        while (waited := time.monotonic() - start) < READY_SECONDS:
            try:
                with opener.open(url, timeout=5):
                    return
            except urllib.error.HTTPError as error:
                answer = f"{error.code} {error.read(500).decode(errors='replace')}"
            except OSError as error:
                answer = str(error)
                # Nobody listens at all: then HAProxy may have said why, and it will say the same each time.
                complaint = haproxy_complaint(self._folder / HAPROXY_FOLDER)
                if complaint is not None and waited > PATIENCE_SECONDS:
                    raise RuntimeError(f"HAProxy does not start: {complaint}") from error
            time.sleep(0.1)
        raise RuntimeError(f"{url} was not ready after {READY_SECONDS:.0f} s; it answered {answer}")

    def _say(self, message: HostMessage) -> None:
        with contextlib.suppress(BrokenPipeError):  # the supervisor was killed, and its signal to stop is on the way
            self._messages.write(message.to_line())


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    signal.signal(STOP_SIGNAL, signal.SIG_IGN)  # one is enough; the supervisor kills what takes too long
    sys.exit(0)


def main() -> NoReturn:
    signal.signal(STOP_SIGNAL, not_while_deleting(_leave))
    adopt_orphans()  # should the supervisor be killed, this process is the last one that can end Ray's
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    orders = HostOrders.from_json(sys.stdin.read())
    code = ClusterHost(orders, int(os.environ.pop(MESSAGES_FD_VARIABLE))).run()
    logging.shutdown()
    os._exit(code)  # without Ray's exit handlers, which would look for what is ended already


if __name__ == "__main__":
    main()
