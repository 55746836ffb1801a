"""What a command finds around it: signals, the working folder, proxies, the number of open files."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.config import ServeConfig
from cluster.haproxy.settings import haproxy_complaint, most_connections
from cluster.lab.cluster_process import ClusterProcess
from cluster.lab.load_client import LoadClient
from cluster.local import supervisor
from cluster.local.host import ClusterHost
from cluster.local.host_environment import host_environment, independent_of_folder
from cluster.local.host_protocol import HostOrders
from cluster.models.gguf_conversion import readable_by_umask
from tests.cluster.commands.stub_cluster import stub_cluster

DEAD_PROXY = "http://127.0.0.1:9"
ROOT = Path(__file__).parents[3]

IGNORED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from cluster.machine.interrupts import take_interrupts
take_interrupts()
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@pytest.fixture
def dead_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, DEAD_PROXY)
        monkeypatch.setenv(name.upper(), DEAD_PROXY)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def port() -> Iterator[int]:
    """Of a cluster that is ready and has no room."""
    with stub_cluster() as server:
        server.answers["/v1/chat/completions"] = (503, b"")
        yield server.server_port


def test_sigint_stops_what_a_shell_started_in_the_background() -> None:
    with subprocess.Popen([sys.executable, "-c", IGNORED], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)  # stays ignored: nohup asked for that
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(30) == 0


def test_readiness_asks_past_every_proxy(dead_proxies: None, port: int, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    try:
        orders = HostOrders({"port": port}, str(tmp_path), str(tmp_path))
        ClusterHost(orders, write_end)._wait_ready()
    finally:
        os.close(read_end)


def test_a_cluster_process_is_seen_past_every_proxy(dead_proxies: None, port: int, tmp_path: Path) -> None:
    cluster = ClusterProcess([], output_path=tmp_path / "output")
    cluster.base_url = f"http://127.0.0.1:{port}"
    assert cluster._healthy()


async def test_the_load_client_goes_past_every_proxy(dead_proxies: None, port: int) -> None:
    async with LoadClient(f"http://127.0.0.1:{port}", "m", max_tokens=1) as client:
        record = await client.chat([{"role": "user", "content": "hello"}])
    assert "503" in str(record.error)  # the server's own, and not that of a proxy that nobody reaches


def test_no_client_of_ours_takes_proxies_from_the_environment() -> None:
    """A client added later must decide: each of them speaks to a cluster by its own address."""
    forgetful = [
        str(path.relative_to(ROOT))
        for package in ("cluster", "replica", "router", "cache")
        for path in (ROOT / package).rglob("*.py")
        for call in ("httpx.Client(", "httpx.AsyncClient(", "httpx.get(", "httpx.post(", "httpx.request(", "urlopen(")
        for rest in path.read_text(encoding="utf-8").split(call)[1:]
        if "trust_env=False" not in rest[:240]
    ]
    assert forgetful == []


def test_the_host_process_keeps_the_users_exceptions_and_adds_its_own(tmp_path: Path) -> None:
    environment = host_environment({"http_proxy": DEAD_PROXY, "NO_PROXY": "intranet,localhost"}, "10.0.0.5")
    assert environment["no_proxy"] == environment["NO_PROXY"] == "intranet,localhost,127.0.0.1,::1,10.0.0.5"
    assert environment["http_proxy"] == DEAD_PROXY


def test_the_host_process_does_not_depend_on_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = host_environment({"PYTHONPATH": f".{os.pathsep}{os.pathsep}/x", "XDG_CACHE_HOME": "cache"}, "::1")
    assert environment["PYTHONPATH"] == f"{tmp_path}{os.pathsep}/x"
    assert environment["XDG_CACHE_HOME"] == str(tmp_path / "cache")
    url = "rediss://r:1/0?ssl_ca_certs=ca.pem&health_check_interval=5"
    config = independent_of_folder(ServeConfig(model=".", api_keys_file="keys.yaml", redis_url=url))
    assert config.served_model_name == tmp_path.name
    assert config.api_keys_file == str(tmp_path / "keys.yaml")
    assert str(config.redis_url).replace("%2F", "/").endswith(f"ssl_ca_certs={tmp_path}/ca.pem&health_check_interval=5")
    plain = ServeConfig(redis_url="redis://:pa%2Fss@r:1/0")
    assert independent_of_folder(plain).redis_url == plain.redis_url


def test_a_module_of_the_working_folder_does_not_shadow_ours(tmp_path: Path) -> None:
    for name in ("cluster", "cache", "redis", "replica", "router"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    cluster = ClusterProcess(["--port", "none"], output_path=tmp_path / "output")
    done = subprocess.run(
        cluster._command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert "the wrong module" not in done.stderr
    assert "port must be a whole number, got 'none'" in done.stderr


@pytest.mark.parametrize("model", [".", "./", "sub/..", "../here"])
def test_a_model_in_the_working_folder_has_that_folders_name(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "here" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert ServeConfig(model=model).model_name == "here"


def test_a_model_without_a_name_must_be_given_one() -> None:
    with pytest.raises(ValueError, match="served_model_name must be given where model is '/'"):
        ServeConfig(model="/")
    assert ServeConfig(model="/", served_model_name="m").model_name == "m"
    assert ServeConfig(model="owner/name").model_name == "name"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_converted_files_are_readable_by_umask(umask: int, mode: int, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    paths = [tmp_path / "model.safetensors", tmp_path / "part" / "config.json"]
    for path in paths:
        path.touch(0o600)
    before = os.umask(umask)
    try:
        readable_by_umask(tmp_path)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in paths] == [mode, mode]
    assert (tmp_path / "part").is_dir()


@pytest.mark.parametrize(
    ("open_files", "connections"),
    [(resource.RLIM_INFINITY, 4096), (65536, 4096), (8792, 4096), (4096, 1748), (1024, 212), (256, 64)],
)
def test_haproxy_is_told_of_no_more_connections_than_it_may_open(open_files: int, connections: int) -> None:
    assert most_connections(open_files) == connections


@pytest.mark.parametrize(
    ("connections", "said"), [(64, ["Only 64 connections"]), (999, ["Only 999 connections"]), (1000, [])]
)
def test_few_connections_are_told(monkeypatch: pytest.MonkeyPatch, connections: int, said: list[str]) -> None:
    """Where the limit of open files cannot be raised, idle clients can keep all others out."""
    monkeypatch.setattr("cluster.haproxy.settings.most_connections", lambda: connections)
    messages = [message.text for message in supervisor._few_connections()]
    assert [text.partition(" at once")[0] for text in messages] == said


def test_haproxys_own_words_are_found(tmp_path: Path) -> None:
    assert haproxy_complaint(tmp_path) is None
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "a.1.2.stderr.log").write_text(
        "[NOTICE]   (7) : haproxy version is 2.8.25\n"
        "[ALERT]    (7) : [haproxy.main()] Cannot raise FD limit to 8250, limit is 4096.\n"
    )
    assert haproxy_complaint(tmp_path) == "[haproxy.main()] Cannot raise FD limit to 8250, limit is 4096."


@pytest.mark.parametrize("hard", [512, 100_000])
def test_as_many_files_may_be_open_as_the_user_may_have(hard: int) -> None:
    """In a process of its own: a limit that was lowered cannot be raised again by everybody."""
    script = "from cluster.local.host_environment import raise_open_files as r; print(r(400), r(600))"
    limit = min(hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, limit)),
    )  # fmt: skip
    first, second = map(int, shown.stdout.split())
    assert first == 400
    assert second in ((512, 600) if hard == 512 else (600,))  # beyond the hard limit for the superuser alone


INTERRUPTED_WHILE_DELETING = """
import os, signal, time
from cluster.machine.interrupts import take_interrupts

class Deleted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)

take_interrupts()
try:
    Deleted()
    signal.pause()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_while_an_object_is_deleted_is_not_lost() -> None:
    """Python swallows every exception there."""
    shown = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_DELETING], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert (shown.stdout, shown.stderr) == ("interrupted\n", "")
