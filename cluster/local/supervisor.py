"""Starts what a cluster consists of, and ends all of it, whatever happened in between."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

from cluster.config import ServeConfig
from cluster.local.embedded_redis import EmbeddedRedis, check_redis
from cluster.local.host import MESSAGES_FD_VARIABLE, STOP_SIGNAL
from cluster.local.host_environment import host_environment, independent_of_folder, raise_open_files
from cluster.local.host_protocol import HostMessage, HostOrders
from cluster.local.redis_keeper import RedisKeeper
from cluster.machine.child_processes import adopt_orphans, end_all_children, end_with_parent
from cluster.machine.free_ports import check_free
from cluster.machine.paths import new_run_folder

STOP_SECONDS = 25.0
"""More than Ray Serve takes to end when nobody is being answered any more."""

FEW_CONNECTIONS = 1000
POLL_SECONDS = 0.25
"""How often it is looked whether the child processes live."""


class ClusterFailed(RuntimeError):
    """The cluster could not start, or died; one sentence for the user."""


class ClusterSupervisor:
    """One cluster of this process, which must be its only child processes: `stop` ends them all.

    Redis runs in a child, Ray in another (`cluster_host`). Redis is started again when it dies. Whatever these leave
    behind is handed to this process by the kernel and ended too.
    """

    def __init__(self, config: ServeConfig, model_dir: Path):
        self.config = config
        self._model_dir = model_dir
        self.folder: Path | None = None
        self._redis: EmbeddedRedis | None = None
        self._host: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path | None:
        """Ray's and the libraries' output."""
        return self.folder / "cluster.log" if self.folder else None

    def start(self) -> Iterator[HostMessage]:
        """Yields what is going on; the last message is of kind "ready".

        Raises ClusterFailed, PortTaken, RedisUnavailable or OSError. Call `stop` however this ends.
        """
        check_free(self.config.host, self.config.port)
        if self.config.redis_url is not None:
            check_redis(self.config.redis_url)
        adopt_orphans()
        raise_open_files()
        yield from _few_connections()
        self.folder = new_run_folder()
        config = self.config
        if config.redis_url is None:
            yield HostMessage("progress", "Starting Redis")
            self._redis = EmbeddedRedis(self.folder)
            self._redis.start()
            config = replace(config, redis_url=self._redis.url)
        yield from self._start_host(config, self.folder)

    def wait(self, report: Callable[[str], None]) -> NoReturn:
        """Returns never but by KeyboardInterrupt, or ClusterFailed when the cluster dies.

        Its Redis may die: it is started again. report: gets a sentence about it for the user.
        """
        if self._host is None:
            raise RuntimeError("the cluster was not started")
        keeper = RedisKeeper(self._redis, report) if self._redis is not None else None
        while (code := self._host.poll()) is None:
            if keeper is not None:
                keeper.check()
            time.sleep(POLL_SECONDS)
        raise ClusterFailed(f"the cluster's main process ended by itself (exit code {code})")

    def stop(self) -> None:
        """In order while that takes a reasonable time, else by force. KeyboardInterrupt cuts the waiting short."""
        try:
            if self._host is not None and self._host.poll() is None:
                self._host.send_signal(STOP_SIGNAL)
                self._host.wait(self.config.drain_seconds + STOP_SECONDS)
            if self._redis is not None:
                self._redis.stop()
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            pass
        finally:
            end_all_children()

    def remove_folder(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start_host(self, config: ServeConfig, folder: Path) -> Iterator[HostMessage]:
        config = independent_of_folder(config)
        orders = HostOrders(asdict(config), str(self._model_dir.absolute()), str(folder)).to_json().encode()
        working_folder = folder / "empty"
        working_folder.mkdir()
        read_end, write_end = os.pipe()
        with (folder / "cluster.log").open("ab") as log, os.fdopen(read_end) as messages:
            self._host = subprocess.Popen(
                [sys.executable, "-P", "-m", "cluster.local.host"],
                cwd=working_folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(write_end,),
                env=host_environment(os.environ, config.host) | {MESSAGES_FD_VARIABLE: str(write_end)},
                start_new_session=True,  # Ctrl-C in the terminal is for this process, which stops the other in order
                preexec_fn=lambda: end_with_parent(STOP_SIGNAL),
            )
            os.close(write_end)
            if self._host.stdin is not None:
                self._host.stdin.write(orders)
                self._host.stdin.close()
            for line in messages:
                message = HostMessage.from_line(line)
                if message.kind == "failed":
                    raise ClusterFailed(message.text)
                yield message
                if message.kind == "ready":
                    return
        raise ClusterFailed(f"the cluster's main process ended while starting (exit code {self._host.wait()})")


def _few_connections() -> Iterator[HostMessage]:
    """Says so where HAProxy can hold so few that idle ones may keep others out."""
    from cluster.haproxy.settings import most_connections  # needs what only a cluster needs

    num = most_connections()
    if num < FEW_CONNECTIONS:
        yield HostMessage("progress", f"Only {num} connections at once, idle ones included: raise `ulimit -n`")
