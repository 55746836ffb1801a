"""A cluster in surroundings that nothing of it may depend on."""

from pathlib import Path

import httpx
import pytest

from cluster.lab.cluster_process import ClusterProcess
from cluster.models.store import resolve_model
from tests.e2e.running_cluster import READY_SECONDS

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROOT = Path(__file__).parents[2]
PROXIES = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"), "http://127.0.0.1:9")


def test_proxies_and_modules_of_the_working_folder_change_nothing(tmp_path: Path) -> None:
    """And `--model .` is served under the folder's name."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    for path in resolve_model().iterdir():
        (folder / path.name).symlink_to(path)
    for name in ("cluster", "cache", "redis", "replica", "router"):
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    environment = {**PROXIES, **{name.upper(): url for name, url in PROXIES.items()}}
    environment |= {"no_proxy": "", "NO_PROXY": "", "PYTHONPATH": str(ROOT)}
    arguments = ["--model", ".", "--replicas", "1", "--num-blocks", "600"]
    process = ClusterProcess(arguments, output_path=tmp_path / "serve.log", env=environment, cwd=folder)
    try:
        process.start()
        process.wait_ready(timeout_seconds=READY_SECONDS)
        with httpx.Client(base_url=process.base_url, timeout=60.0, trust_env=False) as client:
            body = {"model": "my-model", "prompt": "Hello", "max_tokens": 2}
            assert client.post("/v1/completions", json=body).status_code == 200
    finally:
        left = process.stop()
    assert left == []
