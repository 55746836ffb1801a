"""What is refused before Redis and Ray are started."""

from pathlib import Path

import pytest

from cluster.config import ServeConfig
from cluster.local.machine_check import check_memory, check_one_request_fits
from tests.replica.tiny_models import WINDOW, tiny_config

GIB = 1024**3


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A folder with a config and something that counts as weights."""
    tiny_config("Llama").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    return tmp_path


def test_what_fits_passes(model_dir: Path) -> None:
    config = ServeConfig(kv_memory=2 * 2**20, max_model_len=WINDOW)
    check_memory(config, model_dir, available_bytes=GIB)
    check_one_request_fits(config, model_dir)


def test_kv_memory_that_does_not_hold_one_request(model_dir: Path) -> None:
    """A token takes 2 layers x 2 heads x 24 numbers of 4 bytes: 384; the window is 512."""
    needed = 384 * WINDOW
    check_one_request_fits(ServeConfig(kv_memory=needed), model_dir)
    with pytest.raises(ValueError, match=r"one request of max_model_len=512 tokens \(192 KiB\), got"):
        check_one_request_fits(ServeConfig(kv_memory=needed - 1), model_dir)
    check_one_request_fits(ServeConfig(kv_memory=needed // 2, max_model_len=WINDOW // 2), model_dir)


def test_more_replicas_than_memory(model_dir: Path) -> None:
    with (model_dir / "model.safetensors").open("r+b") as weights:
        weights.truncate(800_000_000)
    config = ServeConfig(replicas=2, kv_memory=GIB)
    with pytest.raises(ValueError, match=r"2 replicas need 4.17 GiB .*763 MiB of weights and 1 GiB of KV memory\)"):
        check_memory(config, model_dir, available_bytes=4 * GIB)
    check_memory(config, model_dir, available_bytes=5 * GIB)
    with pytest.raises(ValueError, match="3 GiB of KV memory"):
        check_memory(ServeConfig(replicas=2, kv_memory=GIB, host_kv_memory=2 * GIB), model_dir, available_bytes=5 * GIB)
    check_memory(ServeConfig(gpus_per_replica=1, kv_memory=GIB), model_dir, available_bytes=GIB)
