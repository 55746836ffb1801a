"""What is refused before Redis and Ray are started."""

from pathlib import Path

import pytest

from cluster.config import ServeConfig
from cluster.local.machine_check import check_disk_folder, check_memory, check_one_request_fits
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
    with pytest.raises(ValueError, match=r"2 replicas need 4.17 GiB .*763 MiB of weights, 1 GiB of --kv-memory\)"):
        check_memory(config, model_dir, available_bytes=4 * GIB)
    check_memory(config, model_dir, available_bytes=5 * GIB)
    check_memory(ServeConfig(gpus_per_replica=1, kv_memory=GIB), model_dir, available_bytes=GIB)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"host_kv_memory": 9 * GIB}, "9 GiB of --host-kv-memory.*free: less --host-kv-memory, fewer"),
        ({"kv_memory": 9 * GIB}, "9 GiB of --kv-memory.*free: less --kv-memory, fewer"),
        ({"kv_memory": GIB, "host_kv_memory": 9 * GIB}, "free: less --host-kv-memory, less --kv-memory, fewer"),
        ({"replicas": 20}, "of weights.*free: fewer --replicas"),
        ({"gpus_per_replica": 1, "kv_memory": GIB, "host_kv_memory": 9 * GIB}, "free: less --host-kv-memory, fewer"),
    ],
)
def test_too_little_memory_names_what_takes_it(model_dir: Path, settings: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_memory(ServeConfig(**settings), model_dir, available_bytes=5 * GIB)  # type: ignore[arg-type]


def test_a_colder_tier_that_does_not_hold_one_page(model_dir: Path) -> None:
    """16 tokens of 384 bytes."""
    check_one_request_fits(ServeConfig(host_kv_memory=16 * 384), model_dir)
    with pytest.raises(ValueError, match="host_kv_memory must be 0 or hold a page of 6144 bytes, got 6143"):
        check_one_request_fits(ServeConfig(host_kv_memory=16 * 384 - 1), model_dir)
    with pytest.raises(ValueError, match=r"disk_kv_size must be at least .* got 6144"):
        check_one_request_fits(ServeConfig(disk_kv_folder="kv", disk_kv_size=16 * 384), model_dir)


def test_a_folder_for_pages_is_one_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (None, str(tmp_path), str(tmp_path / "new" / "deeper")):
        check_disk_folder(ServeConfig(disk_kv_folder=folder))
    for folder in (file, file / "below"):
        with pytest.raises(ValueError, match=f"disk_kv_folder must be a folder, and {file} is a file"):
            check_disk_folder(ServeConfig(disk_kv_folder=str(folder)))
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # root may write everywhere
    with pytest.raises(ValueError, match="disk_kv_folder must be writable, and nothing"):
        check_disk_folder(ServeConfig(disk_kv_folder=str(tmp_path / "new")))
