"""The Ray Serve application: ingress -> our request router -> replicas."""

import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from cache.fingerprint import model_fingerprint
from cache.fingerprint_digests import Progress
from cache.fingerprint_record import record_places
from cluster.api.tenants import read_api_keys
from cluster.config import ServeConfig
from cluster.haproxy.settings import check_rules
from cluster.models.facts import read_model_facts
from cluster.serving.cluster_secret import cluster_secret
from cluster.serving.cluster_spec import ClusterSpec
from cluster.setting_sources import expanded
from cluster.text.sampling_defaults import SamplingDefaults, read_sampling_defaults
from replica.cache_folders import cache_folders, cache_root, usable

APP_NAME = "warmlane"
REPLICA_DEPLOYMENT = "Replica"
INGRESS_DEPLOYMENT = "Ingress"
REQUEST_ROUTER = "router.ray_adapter:ChosenReplicaRouter"

MAX_ONGOING_REQUESTS = 4096
"""Far above what an engine batches: the bound on waiting work is the engine's own. Ray's default is 5."""
CPU_SHARE = 0.1
"""A label for Ray's scheduler and no limit: each replica sets torch's threads itself (`replica/node_share.py`)."""


def build_app(args: dict[str, Any]) -> Any:
    """The application for `import_path: cluster.serving.app:build_app`; args are settings of ServeConfig.

    Resolves the model itself. Without `redis_url` routers share nothing and know only what they sent; without `secret`
    this machine's own is taken (see `cluster_secret`). Where it listens is Serve's affair: without keys administration
    is open only where `host` is given and says that this is loopback. Raises ValueError or ModelUnavailable, which
    `serve status` shows.
    """
    from cluster.models.store import resolve_model

    check_rules(os.environ)
    config = ServeConfig.load(args)
    if config.secret is None:
        config = replace(config, secret=cluster_secret(cache_root()).hex())
    spec = cluster_spec(config, resolve_model(config.model))
    return application(config, replace(spec, admin_open=spec.admin_open and "host" in args))


def cluster_spec(config: ServeConfig, model_dir: Path, hashing: Progress | None = None) -> ClusterSpec:
    """Reads the model's folder once for the whole cluster. Raises ValueError where it does not fit the settings.

    hashing: told of the bytes of the weights that are hashed, where their digest is not known yet.
    """
    facts = read_model_facts(model_dir)
    dtype = facts.resolved_dtype(config.dtype, on_gpu=config.gpus_per_replica > 0)
    return ClusterSpec(
        served_model_name=config.model_name,
        model_dir=str(model_dir),
        fingerprint=model_fingerprint(model_dir, dtype, dtype, _digest_places(model_dir), hashing),
        secret=_secret(config),
        block_size=config.block_size,
        max_model_len=facts.max_model_len(config.max_model_len),
        redis_url=config.redis_url,
        policy=config.policy,
        policy_weights=dict(config.policy_weights),
        limits=config.api_limits,
        api_keys=read_api_keys(config.api_keys_file) if config.api_keys_file is not None else None,
        admin_open=config.listens_on_loopback,
        cors_origins=config.origins,
        num_ingress=config.num_ingress,
        transport=config.transport,
        sampling_defaults=SamplingDefaults() if config.ignore_generation_config else read_sampling_defaults(model_dir),
        index_blocks=config.index_blocks,
    )


def _secret(config: ServeConfig) -> bytes:
    """Pages on a disk are found again by the same secret alone, so there it is kept beside them.

    Raises ValueError where the folder cannot be written.
    """
    if config.secret:
        return bytes.fromhex(config.secret)
    if config.disk_kv_folder is None:
        return secrets.token_bytes(32)
    try:
        return cluster_secret(expanded(config.disk_kv_folder))
    except OSError as error:
        raise ValueError(f"disk_kv_folder {config.disk_kv_folder} cannot be used: {error.strerror}") from error


def _digest_places(model_dir: Path) -> tuple[Path, ...]:
    folders = cache_folders()
    stores = [folder / "models" for folder in folders]
    return record_places(model_dir, stores, next((folder for folder in folders if usable(folder)), None))


def application(config: ServeConfig, spec: ClusterSpec, replica_class: type | None = None) -> Any:
    """Binds both deployments; works under `serve.run` as well as in a deployed config.

    replica_class: in place of the class that the settings ask for, with the same constructor.
    """
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    from cluster.serving.ingress import Ingress
    from cluster.serving.replica_port import ReplicaWithApi
    from replica.deployment import ReplicaDeployment

    engine = replace(config.engine(spec.model_dir), max_model_len=spec.max_model_len)
    common = {
        "max_ongoing_requests": MAX_ONGOING_REQUESTS,
        "health_check_period_s": 2.0,
        "health_check_timeout_s": 15.0,
        "graceful_shutdown_wait_loop_s": 0.2,
        "graceful_shutdown_timeout_s": float(config.drain_seconds),
    }
    extra: dict[str, Any] = {}
    if config.replica_api_key is not None:
        replica_class = replica_class or ReplicaWithApi
        extra = {"spec": spec, "api_key": config.replica_api_key}
    replicas = serve.deployment(replica_class or ReplicaDeployment).options(
        name=REPLICA_DEPLOYMENT,
        num_replicas=config.replicas,
        request_router_config=RequestRouterConfig(request_router_class=REQUEST_ROUTER),
        ray_actor_options={
            "num_cpus": CPU_SHARE,
            "num_gpus": config.gpus_per_replica,
            "runtime_env": {"env_vars": _worker_environment(engine.threads)},
        },
        **common,
    )
    ingress = serve.deployment(Ingress).options(
        name=INGRESS_DEPLOYMENT,
        num_replicas=config.num_ingress,
        # A config file that names another one, or changes it later, is applied in place (see `PolicyControl`).
        user_config={"policy": spec.policy, "policy_weights": spec.policy_weights},
        ray_actor_options={"num_cpus": CPU_SHARE, "runtime_env": {"env_vars": _worker_environment(1)}},
        **common,
    )
    bound = replicas.bind(
        engine=engine,
        model_name=spec.served_model_name,
        fingerprint=spec.fingerprint,
        secret=spec.secret,
        redis_url=spec.redis_url,
        **extra,
    )
    return ingress.bind(spec, bound)


def _worker_environment(threads: int | None) -> dict[str, str]:
    """threads: None leaves OMP's to Ray, which sets one where an actor asks for less than one CPU; a replica on CPUs
    sets torch's itself."""
    environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return environment | ({"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)} if threads else {})
