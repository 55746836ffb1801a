"""The parts of start and stop that need no Ray: whole clusters are started in tests/e2e."""

import io
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from cluster.config import ServeConfig
from cluster.local import host
from cluster.local.host_protocol import HostMessage, HostOrders
from cluster.local.ray_runtime import cause_of, ray_environment
from cluster.local.startup_report import StartupReport

STATUS = """The deployment failed to start 2 times in a row. See controller logs for details. Error:
ray::ServeReplica:warmlane:Replica.initialize_and_get_metadata() (pid=1, ip=127.0.0.1)
  File "python/replica.py", line 1, in initialize
    raise RuntimeError(traceback.format_exc()) from None
RuntimeError: Traceback (most recent call last):
  File "replica/model/pool_sizing.py", line 54, in num_pages
    raise PoolTooSmall(
replica.errors.PoolTooSmall: one request of max_model_len=8192 tokens needs 512 blocks: give more memory
"""

ORPHANS = """
import os, subprocess, sys, time
from cluster.machine.child_processes import adopt_orphans, end_all_children
import psutil
adopt_orphans()
middle = subprocess.Popen([sys.executable, "-c", '''
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
'''], stdout=subprocess.PIPE, text=True)
pid = int(middle.stdout.readline())
middle.wait()
assert psutil.Process(pid).ppid() == os.getpid(), "adopted"
end_all_children()
print(psutil.pid_exists(pid), psutil.Process().children())
"""


def test_orphans_of_children_are_ended_too() -> None:
    shown = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False []"


@pytest.mark.parametrize(
    ("messages", "cause"),
    [
        (["", STATUS], "one request of max_model_len=8192 tokens needs 512 blocks: give more memory"),
        (
            ["The deployments ['Replica'] are UNHEALTHY.", STATUS],
            "one request of max_model_len=8192 tokens needs 512 blocks: give more memory",
        ),
        (["it is closed"], "it is closed"),
        (["", ""], "Ray Serve gave no reason"),
    ],
)
def test_the_innermost_error_is_what_the_user_sees(messages: list[str], cause: str) -> None:
    assert cause_of(messages) == cause


def test_messages_and_orders_survive_the_pipe() -> None:
    message = HostMessage("progress", 'Loading "x"\nand more', 1, 2, ("the fused decoder",), "bytes")
    assert message.to_line().count("\n") == 1
    assert HostMessage.from_line(message.to_line()) == message
    orders = HostOrders({"secret": "ab" * 16, "replicas": 3}, "/model", "/tmp/x")
    assert HostOrders.from_json(orders.to_json()) == orders
    assert ServeConfig(**orders.config).replicas == 3


@pytest.mark.parametrize(("unseen_seconds", "is_told"), [(3600.0, False), (-1.0, True)])
def test_hashing_is_a_step_of_its_own_where_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unseen_seconds: float, is_told: bool
) -> None:
    monkeypatch.setattr(host, "UNSEEN_SECONDS", unseen_seconds)
    read_end, write_end = os.pipe()
    started = host.ClusterHost(HostOrders(asdict(ServeConfig()), str(tmp_path), str(tmp_path)), write_end)
    started._hashing()(5 * 10**9, 10**10)
    started._messages.close()
    with os.fdopen(read_end) as messages:
        told = [HostMessage.from_line(line) for line in messages]
    assert told == [HostMessage("progress", "Hashing the model's weights", 5 * 10**9, 10**10, unit="bytes")] * is_told


def test_steps_are_counted_in_their_own_unit() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    messages = [
        HostMessage("progress", "Hashing the model's weights", 5 * 10**9, 10**10, unit="bytes"),
        HostMessage("progress", "Loading the model into the replicas", 1, 2),
        HostMessage("ready", "HAProxy"),
    ]
    StartupReport(ServeConfig(), console).follow(messages, lambda: None)
    shown = console.file.getvalue()
    assert re.search(r"Hashing the model's weights.*10\.0/10\.0 GB", shown)
    assert re.search(r"Loading the model into the replicas.*2/2", shown)


def test_ray_keeps_to_loopback_and_tells_nobody(tmp_path: Path) -> None:
    environment = ray_environment(ServeConfig(), tmp_path)
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
