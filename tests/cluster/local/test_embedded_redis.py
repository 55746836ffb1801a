"""The embedded server: starts, answers, keeps nothing, and never outlives its cluster."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis

from cluster.local.embedded_redis import EmbeddedRedis, RedisUnavailable, check_redis, find_server
from tests.waiting import wait_until


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_starts_answers_and_stops(folder: Path) -> None:
    with EmbeddedRedis(folder) as server:
        client = redis.Redis.from_url(server.url)
        client.set("a", "1")
        assert client.get("a") == b"1"
        client.close()
        pid = server.pid
    assert pid is not None
    assert gone(pid)
    with pytest.raises(RedisUnavailable):
        check_redis(server.url)


def test_keeps_nothing_and_listens_on_no_port(folder: Path) -> None:
    with EmbeddedRedis(folder) as server:
        client = redis.Redis.from_url(server.url)
        assert client.config_get("port")["port"] == "0"
        assert client.config_get("save")["save"] == ""
        client.set("a", "1")
        client.close()
    assert not list(folder.glob("*.rdb"))
    with EmbeddedRedis(folder) as server:
        client = redis.Redis.from_url(server.url)
        assert client.get("a") is None
        client.close()


def test_two_clusters_do_not_meet(folder: Path) -> None:
    for name in "ab":
        (folder / name).mkdir()
    with EmbeddedRedis(folder / "a") as first, EmbeddedRedis(folder / "b") as second:
        one, two = redis.Redis.from_url(first.url), redis.Redis.from_url(second.url)
        one.set("key", "1")
        assert two.get("key") is None
        one.close()
        two.close()


def test_dies_with_a_parent_that_is_killed_hard(folder: Path) -> None:
    code = (
        "import sys, time, pathlib; from cluster.local.embedded_redis import EmbeddedRedis\n"
        "server = EmbeddedRedis(pathlib.Path(sys.argv[1])); server.start()\n"
        "print(server.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert not gone(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    wait_until(lambda: gone(pid))


def test_stop_twice_and_without_start_is_fine(folder: Path) -> None:
    server = EmbeddedRedis(folder)
    server.stop()
    server.start()
    server.stop()
    server.stop()


def test_the_wheel_serves_where_path_has_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert find_server().endswith("valkey-server")


def test_a_server_that_cannot_start_says_why(folder: Path) -> None:
    with pytest.raises(RedisUnavailable, match="did not start"):
        EmbeddedRedis(folder, server="/bin/false").start()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@127.0.0.1:1/0", "redis://...@127.0.0.1:1/0"),
        ("redis://:sec@ret@127.0.0.1:1/0", "redis://...@127.0.0.1:1/0"),
        ("redis://127.0.0.1:1/0?password=secret&db=0", "redis://127.0.0.1:1/0?..."),
        ("redis://127.0.0.1:1/0?username=me&password=sec@ret", "redis://..."),
        ("redis://user:sec?ret@127.0.0.1:1/0", "redis://..."),
        ("redis://user:sec#ret@127.0.0.1:1/0", "redis://..."),
        ("redis://user:sec/ret@127.0.0.1:1/0", "redis://...@127.0.0.1:1/0"),
        ("rediss://u:secret@127.0.0.1:1?ssl_password=secret", "rediss://...@127.0.0.1:1?..."),
        ("unix:///tmp/no-such.sock?password=secret", "unix:///tmp/no-such.sock?..."),
        ("user:secret@127.0.0.1:1", "...@127.0.0.1:1"),
        ("no-url", "no-url"),
    ],
)
def test_a_given_url_is_checked_and_no_secret_of_it_shown(url: str, shown: str) -> None:
    with pytest.raises(RedisUnavailable) as caught:
        check_redis(url)
    assert str(caught.value).startswith(f"redis_url {shown}: ")
    assert "sec" not in str(caught.value).removeprefix(f"redis_url {shown}")


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("bogus=secret", "Redis clients know no parameter 'bogus'"),
        ("db=0&bogus=secret", "Redis clients know no parameter 'bogus'"),
        ("retry=secret", "'retry'"),
        ("connection_class=secret", "'connection_class'"),
        ("db=x", "'db'"),
        ("socket_timeout=x", "'socket_timeout'"),
    ],
)
def test_a_parameter_that_no_client_takes_is_named(query: str, named: str) -> None:
    with pytest.raises(RedisUnavailable) as caught:
        check_redis(f"redis://127.0.0.1:1/?{query}")
    assert named in str(caught.value)
    assert "secret" not in str(caught.value)
