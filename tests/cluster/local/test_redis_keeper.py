"""The cluster's own Redis dies: it is there again, under the same URL, and stopping still leaves nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis

from cluster.local.embedded_redis import EmbeddedRedis, RedisUnavailable, check_redis, find_server
from cluster.local.redis_keeper import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, STEADY_SECONDS, RedisKeeper
from tests.router.routers import ManualClock
from tests.waiting import wait_until


def kill(server: EmbeddedRedis) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.is_running, "the server has ended")


def test_a_killed_server_answers_again_under_its_url(folder: Path) -> None:
    told: list[str] = []
    with EmbeddedRedis(folder) as server, redis.Redis.from_url(server.url) as client:
        keeper = RedisKeeper(server, told.append)
        client.set("a", "1")
        keeper.check()
        assert (client.get("a"), told) == (b"1", []), "one that lives is left alone"
        before = server.pid
        kill(server)
        with pytest.raises(RedisUnavailable):
            check_redis(server.url)
        keeper.check()
        assert client.get("a") is None
        assert client.config_get("port")["port"] == "0"
        assert client.config_get("save")["save"] == ""
        assert server.pid != before
        assert told == ["Redis had ended (killed by signal 9) and is started again."]
        last = server.pid
    assert last is not None and not psutil.pid_exists(last)


def test_one_that_dies_again_soon_waits_and_one_that_ran_long_does_not(folder: Path) -> None:
    clock = ManualClock()
    with EmbeddedRedis(folder) as server:
        keeper = RedisKeeper(server, lambda text: None, clock)

        def is_back(after_seconds: float) -> bool:
            clock.now += after_seconds
            keeper.check()
            return server.is_running

        kill(server)
        assert is_back(0.0)
        kill(server)
        assert not is_back(FIRST_PAUSE_SECONDS / 2)
        assert is_back(FIRST_PAUSE_SECONDS / 2)
        kill(server)
        assert not is_back(FIRST_PAUSE_SECONDS)
        assert is_back(FIRST_PAUSE_SECONDS)
        assert is_back(STEADY_SECONDS)
        kill(server)
        assert is_back(0.0)


def test_one_that_cannot_start_is_tried_again_at_a_bounded_pace_and_told_each_time(folder: Path) -> None:
    clock, told = ManualClock(), list[str]()
    keeper = RedisKeeper(EmbeddedRedis(folder, server="/bin/false"), told.append, clock)
    for _ in range(400):
        keeper.check()
        clock.now += 1.0
    pauses = [float(text.partition(" s:")[0].rpartition(" ")[2]) for text in told]
    assert pauses[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert set(pauses[7:]) == {LONGEST_PAUSE_SECONDS}
    assert len(told) == 5 + -(-(400 - 31) // 30)
    assert "did not start" in told[0]


# What `warmlane serve` does around a cluster, with a process that only sleeps in place of Ray's. The second start of
# Redis never comes to an end, so Ctrl-C arrives in the middle of it.
SUPERVISED = """
import subprocess
from pathlib import Path
import psutil
from cluster.local.supervisor import ClusterSupervisor
from cluster.config import ServeConfig
from cluster.machine.free_ports import FreePorts
from cluster.local.host_protocol import HostMessage
from cluster.machine.interrupts import take_interrupts

class Sleeping(ClusterSupervisor):
    def _start_host(self, config, folder):
        self._host = subprocess.Popen(["sleep", "600"])
        yield HostMessage("ready", "")

take_interrupts()
cluster = Sleeping(ServeConfig(port=FreePorts()()), Path("/model"))
for message in cluster.start():
    pass
try:
    print(cluster._redis.pid, flush=True)
    cluster.wait(lambda text: None)
except KeyboardInterrupt:
    cluster.stop()
    cluster.remove_folder()
    print("left:", psutil.Process().children(recursive=True), flush=True)
"""
SECOND_START_HANGS = """#!/bin/sh
if [ -e {marks}/first ]; then echo $$ > {marks}/second.new; mv {marks}/second.new {marks}/second; exec sleep 600; fi
touch {marks}/first
exec {server} "$@"
"""


def test_ctrl_c_while_redis_starts_again_leaves_no_process(folder: Path) -> None:
    script = folder / "redis-server"
    script.write_text(SECOND_START_HANGS.format(marks=folder, server=find_server()))
    script.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISED], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            os.kill(int(process.stdout.readline()), signal.SIGKILL)
            wait_until((folder / "second").exists, "Redis is started again")
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60.0)[0] == "left: []\n"
        finally:
            process.kill()
    assert not psutil.pid_exists(int((folder / "second").read_text()))
