"""One cluster of `bench_router --part peers` or of `bench_cache`: `python -m tests.benchmarks.router_cluster`, ended by
closing its input.

Four replicas with a port of their own each, and our routing in front of them as `warmlane serve` sets it up. It prints
one line of JSON with the replicas' addresses when all of them run.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.api.limits import KEEP_ALIVE_SECONDS
from cluster.config import ServeConfig
from cluster.local.embedded_redis import EmbeddedRedis
from cluster.local.ray_runtime import put_into_environment, ray_environment, start_ray, stop_serve
from cluster.machine.child_processes import adopt_orphans, end_all_children
from cluster.serving.app import APP_NAME, REPLICA_DEPLOYMENT, application, cluster_spec

NUM_REPLICAS = 4
REAL, PACED, PACED_PAGES, PACED_70B, PACED_8B = "real", "paced", "paced_pages", "paced_70b", "paced_8b"


def run(
    model_dir: Path,
    port: int,
    engine: str,
    num_blocks: int,
    transport: str,
    num_ingress: int,
    api_key: str,
    settings: Mapping[str, Any],
) -> None:
    """settings: further ones of ServeConfig."""
    with tempfile.TemporaryDirectory(prefix="wl-", dir="/tmp") as folder, EmbeddedRedis(Path(folder)) as redis:
        config = ServeConfig(
            port=port,
            replicas=NUM_REPLICAS,
            num_ingress=num_ingress,
            threads_per_replica=1,
            num_blocks=num_blocks,
            transport=transport,
            redis_url=redis.url,
            replica_api_key=api_key,
            **settings,
        )
        put_into_environment(ray_environment(config, Path(folder)))
        start_ray(config, Path(folder))
        try:
            urls = _deploy(config, model_dir, engine)
            print(json.dumps({"replicas": urls}), flush=True)
            sys.stdin.read()
        finally:
            stop_serve()
            end_all_children()


def _deploy(config: ServeConfig, model_dir: Path, engine: str) -> list[str]:
    """Returns the addresses of the replicas' own APIs."""
    from ray import serve

    from tests.benchmarks.paced_pages import Paced8B, Paced70B, PagedReplica
    from tests.benchmarks.paced_replica import PacedReplica

    replica_class = {PACED: PacedReplica, PACED_PAGES: PagedReplica, PACED_70B: Paced70B, PACED_8B: Paced8B}.get(engine)
    app = application(config, cluster_spec(config, model_dir), replica_class)
    options = {"host": "127.0.0.1", "port": config.port, "keep_alive_timeout_s": KEEP_ALIVE_SECONDS}
    serve.start(proxy_location="EveryNode", http_options=options)
    serve.run(app, name=APP_NAME, route_prefix="/")
    replicas = serve.get_deployment_handle(REPLICA_DEPLOYMENT, APP_NAME)
    return sorted(str(answer["api_url"]) for answer in replicas.broadcast("describe").results(timeout_s=30))


if __name__ == "__main__":
    adopt_orphans()
    run(
        Path(sys.argv[1]),
        int(sys.argv[2]),
        sys.argv[3],
        int(sys.argv[4]),
        sys.argv[5],
        int(sys.argv[6]),
        os.environ.pop("REPLICA_API_KEY"),
        json.loads(sys.argv[7]),
    )
    os._exit(0)
