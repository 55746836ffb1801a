"""Files that other programs read: each parses, and names only what exists."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from cluster.config import ServeConfig
from tests.deploy.dashboard import DEPLOY_DIR

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
    assert application.import_path == "cluster.app:build_app"
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


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    for path in DEPLOY_DIR.rglob("*"):
        if path.is_file():
            assert not re.search(r"/(work|root|Users|tmp)/", Path(path).read_text(encoding="utf-8")), path
