"""A small tokenizer; a real HAProxy and a folder for it; Ray with Serve for the tests that deploy an application."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.haproxy.settings import find_haproxy
from cluster.machine.free_ports import FreePorts
from tests.cluster.text.small_tokenizer import write_small_tokenizer

if TYPE_CHECKING:
    from cluster.text.tokenization import ChatTokenizer


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir: Path) -> ChatTokenizer:
    from cluster.text.tokenization import ChatTokenizer  # here, because it imports transformers

    return ChatTokenizer(str(tokenizer_dir))


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wlc-", dir="/tmp") as path:  # short: sockets end at 97 characters
        yield Path(path)


@pytest.fixture
def binary() -> str:
    found = find_haproxy()
    if found is None:
        pytest.skip("no haproxy runs here")
    return found


@pytest.fixture(scope="package")
def serve_url() -> Iterator[str]:
    """Where Serve's Python proxy answers. Started once; who deploys an application there deletes it again."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled", RAY_worker_niceness="0")
    import ray
    from ray import serve

    ports = FreePorts()
    port = ports()
    with tempfile.TemporaryDirectory(prefix="wl-", dir="/tmp") as folder:
        ray.init(
            "local", num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False,
            _temp_dir=folder, _metrics_export_port=ports(),
            runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}},
        )  # fmt: skip
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            yield f"http://127.0.0.1:{port}"
        finally:
            serve.shutdown()
            ray.shutdown()
