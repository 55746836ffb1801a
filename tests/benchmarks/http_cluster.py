"""One Ray cluster of `bench_http`: `python -m tests.benchmarks.http_cluster`, ended by closing its standard input.

Behind HAProxy it holds our application once for each transport, behind Ray's Python proxy ours and the default one. It
prints one line of JSON when all of them run.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from cluster.api.limits import KEEP_ALIVE_SECONDS
from cluster.config import ServeConfig
from cluster.local.ray_runtime import put_into_environment, ray_environment, start_ray, stop_serve
from cluster.machine.child_processes import adopt_orphans, end_all_children


def run(model_dir: str, port: int, kind: str) -> None:
    with tempfile.TemporaryDirectory(prefix="wl-", dir="/tmp") as folder:
        config = ServeConfig(port=port, replicas=4, num_ingress=2, transport="handle")
        environment = ray_environment(config, Path(folder))
        if kind == "python":
            environment = {name: value for name, value in environment.items() if "HAPROXY" not in name}
            environment.pop("RAY_SERVE_ENABLE_HA_PROXY", None)
        put_into_environment(environment)
        start_ray(config, Path(folder))
        try:
            _deploy(model_dir, port, kind)
            print(json.dumps({"ready": True}), flush=True)
            sys.stdin.read()
        finally:
            stop_serve(drain_seconds=5.0)
            end_all_children()


def _deploy(model_dir: str, port: int, kind: str) -> None:
    from ray import serve

    from tests.benchmarks.http_apps import (
        OUR_TRANSPORTS,
        PYTHON_PROXY,
        RAY_DEFAULT,
        default_application,
        our_application,
    )

    options = {"host": "127.0.0.1", "port": port, "keep_alive_timeout_s": KEEP_ALIVE_SECONDS}
    serve.start(proxy_location="EveryNode", http_options=options)
    if kind == "haproxy":
        applications = {name: our_application(model_dir, name) for name in OUR_TRANSPORTS}
    else:
        applications = {
            PYTHON_PROXY: our_application(model_dir, "side_channel"),
            RAY_DEFAULT: default_application(model_dir),
        }
    targets = [serve.RunTarget(app, name=name, route_prefix=f"/{name}") for name, app in applications.items()]
    serve.run_many(targets, wait_for_applications_running=True)


if __name__ == "__main__":
    adopt_orphans()
    run(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    os._exit(0)
