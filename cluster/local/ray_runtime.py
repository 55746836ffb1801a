"""Ray and Ray Serve of one cluster on this machine, kept apart from every other one."""

import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from cluster.api.limits import KEEP_ALIVE_SECONDS
from cluster.config import ServeConfig
from cluster.haproxy.settings import (
    ENABLED_VARIABLE,
    PATH_VARIABLE,
    check_rules,
    find_haproxy,
    haproxy_environment,
)
from cluster.local.machine_check import check_gpus
from cluster.machine.free_ports import FreePorts
from cluster.serving.app import CPU_SHARE
from cluster.serving.cluster_spec import ClusterSpec

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 100 * 1024**2
"""Requests and answers are far smaller than what Ray would put there; it takes no less than 75 MiB."""
HAPROXY_FOLDER = "h"
"""In the run folder; short, because sockets lie below it."""
ANSWER_SECONDS = 3.0
"""An ingress that does not answer for so long is not waited for."""


def ray_environment(config: ServeConfig, folder: Path) -> dict[str, str]:
    """What must stand in the environment before Ray is imported; its processes inherit it."""
    environment = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # Off Linux Ray keeps to loopback; this makes it do so here. Its ports would run anybody's code otherwise.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_worker_niceness": "0",  # else workers run at nice 15, below everything else on the machine
        "RAY_SERVE_LOG_TO_STDERR": "0",
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",  # Ray's 0.1 s cost an idle cluster 2 % of a core more
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # Ray's 5 s kill HAProxy's manager on a machine that is busy
        "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1",  # a constructor that fails once fails again
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    binary = find_haproxy()
    if binary is None:
        return environment
    haproxy = folder / HAPROXY_FOLDER
    haproxy.mkdir()
    return environment | haproxy_environment(binary, config.host, haproxy, FreePorts())


def start_ray(config: ServeConfig, folder: Path) -> None:
    """Raises ValueError when the machine lacks the GPUs that were asked for, or HAProxy would run without our rules."""
    check_rules(os.environ)
    import ray

    wanted_cpus = math.ceil(CPU_SHARE * (config.replicas + config.num_ingress)) + 1
    ray.init(
        "local",
        num_cpus=max(os.cpu_count() or 1, wanted_cpus),
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        namespace="warmlane",
        runtime_env={"worker_process_setup_hook": "cluster.serving.local_grpc.keep_grpc_local"},
        _temp_dir=str(folder / "ray"),
        _node_ip_address="127.0.0.1",
        _metrics_export_port=FreePorts()(),
    )
    check_gpus(config, int(ray.cluster_resources().get("GPU", 0)))


def start_serve(config: ServeConfig, spec: ClusterSpec) -> Iterator[tuple[int, int]]:
    """Deploys the application and yields (replicas that run, replicas wanted) until all do.

    Raises RuntimeError with the cause when it cannot be deployed.
    """
    from ray import serve
    from ray.serve.schema import ApplicationStatus

    from cluster.serving.app import APP_NAME, REPLICA_DEPLOYMENT, application

    app = application(config, spec)
    # HAProxy alone listens on the given host (see `haproxy_launcher`), the ingresses behind it on loopback.
    host = "127.0.0.1" if behind_haproxy() else config.host
    serve.start(
        proxy_location="EveryNode",
        http_options={"host": host, "port": config.port, "keep_alive_timeout_s": KEEP_ALIVE_SECONDS},
    )
    serve.run_many(
        [serve.RunTarget(app, name=APP_NAME, route_prefix="/")],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )
    while True:
        status = serve.status().applications[APP_NAME]
        running = (
            status.deployments[REPLICA_DEPLOYMENT].replica_states if REPLICA_DEPLOYMENT in status.deployments else {}
        )
        yield running.get("RUNNING", 0), config.replicas
        if status.status == ApplicationStatus.RUNNING:
            return
        if status.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY):
            messages = [status.message, *(deployment.message for deployment in status.deployments.values())]
            raise RuntimeError(cause_of(messages))
        time.sleep(0.2)


def forward_passes() -> tuple[str, ...]:
    """What the replicas compute with, each once; one for all where their machines are alike."""
    from ray import serve

    from cluster.serving.app import APP_NAME, REPLICA_DEPLOYMENT

    described = serve.get_deployment_handle(REPLICA_DEPLOYMENT, APP_NAME).broadcast("describe").results(timeout_s=30.0)
    return tuple(dict.fromkeys(str(replica.get("forward_pass", "unknown")) for replica in described))


def cause_of(messages: list[str]) -> str:
    """The sentence of the innermost exception in Serve's status messages, else the first message."""
    for message in messages:
        lines = [line for line in message.strip().splitlines() if line and not line[0].isspace()]
        for line in reversed(lines):
            name, colon, rest = line.partition(": ")
            if colon and " " not in name and name.split(".")[-1][:1].isupper() and "RayTaskError" not in name:
                return rest
    return next((message.strip() for message in messages if message.strip()), "Ray Serve gave no reason")


def stop_serve(drain_seconds: float) -> None:
    """Lets the ingresses finish what they answer, and ends HAProxy and the replicas in order.

    Where answers go on after `drain_seconds` all is left as it is, for Serve would wait for them as long again.
    """
    import ray
    from ray import serve

    if not ray.is_initialized():
        return
    try:
        num_inside = _finish_answers(drain_seconds)
    except Exception as error:  # never started, or broken: then there is nothing to wait for
        logger.warning("the ingresses could not be asked to finish: %r", error)
        num_inside = 0
    if num_inside:
        logger.warning("%d requests were still being answered after %.0f s", num_inside, drain_seconds)
    else:
        serve.shutdown()


def _finish_answers(drain_seconds: float) -> int:
    """Lets every ingress drain and waits until nobody is being answered. Returns how many still are when time is up."""
    from ray import serve

    from cluster.serving.app import APP_NAME, INGRESS_DEPLOYMENT

    handle = serve.get_deployment_handle(INGRESS_DEPLOYMENT, APP_NAME)
    deadline = time.monotonic() + drain_seconds
    while num_in_flight := sum(handle.broadcast("begin_drain").results(timeout_s=ANSWER_SECONDS)):
        if time.monotonic() > deadline:
            return num_in_flight
        time.sleep(0.1)
    return 0


def behind_haproxy() -> bool:
    return os.environ.get(ENABLED_VARIABLE) == "1"


def put_into_environment(values: Mapping[str, str]) -> None:
    """The user's own settings of the same name win, but for the launcher: it runs the HAProxy that the user named."""
    for name, value in values.items():
        if name == PATH_VARIABLE:
            os.environ[name] = value
        os.environ.setdefault(name, value)
