"""What following a large, idle fleet costs each router and Redis: simulated replicas, real routers, a real server.

One process writes the heartbeats of all replicas with the commands of `RedisPublication`; each router is a process of
its own, as in a cluster. All run on one machine, so that lags are differences of one clock.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
from rich.console import Console

from cache.key_set import KeySet
from cache.wire.records import ReplicaHeartbeat, ReplicaLoad, ReplicaRegistration
from cache.wire.redis_keys import HEARTBEAT_SECONDS, RedisKeys
from cache.wire.snapshot import Snapshot
from replica.redis_publication import RedisPublication
from router.prefix_router import PrefixRouter
from tests.router.routers import HASHER, make_router
from tests.valkey_process import ValkeyProcess

FLEETS = ((10, 8), (100, 8), (1000, 8))
"""Replicas, routers."""
WARM_SECONDS = 6.0
MEASURED_SECONDS = 6.0
ROUTER_PERCENT, REDIS_PERCENT = 5.0, 10.0


def run_scale(console: Console, fleets: Sequence[tuple[int, int]] = FLEETS) -> list[dict[str, Any]]:
    rows = []
    for num_replicas, num_routers in fleets:
        row = _measure(num_replicas, num_routers)
        rows.append(row)
        console.print(
            f"{num_replicas} replicas x {num_routers} routers: {row['router_percent']:.1f} % of a core each, Redis "
            f"{row['redis_percent']:.1f} %, lag p50 {row['lag_p50_ms']:.0f} ms, p99 {row['lag_p99_ms']:.0f} ms",
            highlight=False,
        )
    return rows


def verdicts(rows: Sequence[dict[str, Any]]) -> list[tuple[str, bool, str]]:
    found = []
    for row in rows:
        if row["replicas"] == 100:
            good = row["router_percent"] < ROUTER_PERCENT and row["redis_percent"] < REDIS_PERCENT
            text = f"{row['router_percent']:.1f} %, {row['redis_percent']:.1f} %"
            found.append(("100 idle replicas x 8 routers: under 5 % of a core each, 10 % of Redis", good, text))
    return found


def _measure(num_replicas: int, num_routers: int) -> dict[str, Any]:
    with _server() as server, _child("replicas", server.url, num_replicas) as replicas:
        replicas.stdout.readline()  # type: ignore[union-attr]
        routers = [_start("router", server.url, num_replicas) for _ in range(num_routers)]
        try:
            time.sleep(WARM_SECONDS)
            with server.client() as client:
                redis = psutil.Process(client.info("server")["process_id"])
            watched = [redis, *(psutil.Process(router.pid) for router in routers)]
            before, started = [_cpu(process) for process in watched], time.monotonic()
            time.sleep(MEASURED_SECONDS)
            seconds = time.monotonic() - started
            percents = [100 * (_cpu(process) - was) / seconds for process, was in zip(watched, before, strict=True)]
            answers = [json.loads(router.communicate("\n", timeout=30)[0]) for router in routers]
        finally:
            for router in routers:
                router.kill()
    lags = sorted(lag for answer in answers for lag in answer["lags_ms"])
    return {
        "replicas": num_replicas,
        "routers": num_routers,
        "router_percent": max(percents[1:]),
        "redis_percent": percents[0],
        "lag_p50_ms": lags[len(lags) // 2] if lags else float("nan"),
        "lag_p99_ms": lags[len(lags) * 99 // 100] if lags else float("nan"),
        "followed": min(answer["followed"] for answer in answers),
    }


@contextmanager
def _server() -> Iterator[ValkeyProcess]:
    server = ValkeyProcess()
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _start(role: str, url: str, num_replicas: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.benchmarks.router_scale", role, url, str(num_replicas)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def _child(role: str, url: str, num_replicas: int) -> Iterator["subprocess.Popen[str]"]:
    process = _start(role, url, num_replicas)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _replicas(url: str, num_replicas: int) -> None:
    """Beats for all of them in turn, each every HEARTBEAT_SECONDS, until it is killed."""
    keys, shadow = RedisKeys(HASHER.fingerprint), KeySet()
    fleet = [
        RedisPublication(url, keys, ReplicaRegistration(f"replica-{n}", "01", HASHER.canary, 16, 10_000, 1.0), 5.0)
        for n in range(num_replicas)
    ]
    for publication in fleet:
        publication.register(Snapshot.of(1, shadow))
    print("ready", flush=True)
    due = time.monotonic()
    while True:
        for publication in fleet:
            time.sleep(max(0.0, due - time.monotonic()))
            now_ms = int(time.monotonic() * 1000)
            publication.beat(ReplicaHeartbeat(ReplicaLoad(num_free_blocks=now_ms), 2, 0, shadow.digests))
            due = max(due + HEARTBEAT_SECONDS / num_replicas, time.monotonic() - 1.0)


def _router(url: str, num_replicas: int) -> None:
    router: PrefixRouter = make_router(url, tuple(f"replica-{n}" for n in range(num_replicas)))
    lags: list[float] = []
    take = router._state.on_heartbeat

    def on_heartbeat(replica_id: str, load: ReplicaLoad, measured_at: float) -> None:
        lags.append(time.monotonic() * 1000 - load.num_free_blocks)
        take(replica_id, load, measured_at)

    router._state.on_heartbeat = on_heartbeat  # type: ignore[method-assign]
    router.start()
    sys.stdin.readline()
    replicas = router.status()["replicas"]
    assert isinstance(replicas, dict)
    followed = sum(bool(known["registered"]) for known in replicas.values())
    print(json.dumps({"lags_ms": lags[len(lags) // 2 :], "followed": followed}), flush=True)
    router.stop()


if __name__ == "__main__":
    {"replicas": _replicas, "router": _router}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
