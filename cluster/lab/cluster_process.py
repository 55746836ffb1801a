"""`warmlane serve` as a child process: started, awaited and for sure stopped."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import httpx
import psutil

_MARK = "CLUSTER_PROCESS_MARK"
_SERVE = "import sys; from cluster.commands.cli import main; sys.exit(main())"
_PR_SET_PDEATHSIG = 1


class ClusterFailed(RuntimeError):
    """The cluster ended or was not ready in time; the message holds the end of its output."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ClusterProcess:
    """The command line as a user would give it, so that HAProxy, Redis and all settings are the real ones.

    arguments: what follows `warmlane serve`; `--port` is chosen here. output_path takes what the command prints.
    Everything that the command starts inherits a mark in its environment, by which `stop` finds what was left behind.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        output_path: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.output_path = output_path
        self._command = [sys.executable, "-P", "-c", _SERVE, "serve", "--port", str(self.port), *arguments]
        self._mark = uuid.uuid4().hex
        self._cwd = cwd
        self._env = {**os.environ, **(env or {}), _MARK: self._mark}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ClusterProcess":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        libc = ctypes.CDLL(None)  # loaded before the fork: the child may only make the call
        with self.output_path.open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,  # Ctrl-C in the terminal reaches us alone, and we stop the child in order
                preexec_fn=lambda: _in_child(libc),
            )

    def wait_ready(self, *, timeout_seconds: float, on_wait: Callable[[float], None] | None = None) -> None:
        """Returns when `/health` answers 200; raises ClusterFailed. on_wait gets the seconds waited so far."""
        start = time.monotonic()
        while (waited := time.monotonic() - start) < timeout_seconds:
            if self._process is None or self._process.poll() is not None:
                raise ClusterFailed(f"the cluster ended before it was ready:\n{self.output_tail()}")
            if self._healthy():
                return
            if on_wait is not None:
                on_wait(waited)
            time.sleep(0.25)
        raise ClusterFailed(f"the cluster was not ready after {timeout_seconds:.0f} s:\n{self.output_tail()}")

    def output_tail(self, num_characters: int = 3000) -> str:
        return self.output_path.read_text(errors="replace")[-num_characters:]

    def stop(self, *, timeout_seconds: float = 60.0) -> list[str]:
        """Ctrl-C, then what is left is killed. Returns the command lines of what was left, none if all was in order."""
        if self._process is None:
            return []
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=timeout_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        left = self._wait_gone(timeout_seconds=10.0)
        descriptions = [_describe(process) for process in left]
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=10.0)
        return descriptions

    def processes(self) -> Iterator[psutil.Process]:
        """Every living process that this cluster started, however detached."""
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield process
            except (psutil.Error, OSError):  # ended meanwhile, or not ours to read
                continue

    def _wait_gone(self, *, timeout_seconds: float) -> list[psutil.Process]:
        deadline = time.monotonic() + timeout_seconds
        while (left := list(self.processes())) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{self.base_url}/health", timeout=2.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"{process.pid} (ended)"


def _in_child(libc: ctypes.CDLL) -> None:
    """Should we be killed, the child gets the signal that makes it stop all it started.

    It must not be ignored, as it is in what a shell started in the background.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
