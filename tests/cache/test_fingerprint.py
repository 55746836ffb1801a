"""The fingerprint names the weights: it moves with them and with nothing else."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from cache.fingerprint import SAMPLE_BYTES, SAMPLES_PER_FILE, model_fingerprint

LARGE = SAMPLE_BYTES * SAMPLES_PER_FILE * 3


def write_safetensors(path: Path, body: bytes, name: str = "w") -> None:
    header = json.dumps({name: {"dtype": "U8", "shape": [len(body)], "data_offsets": [0, len(body)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    write_safetensors(folder / "model.safetensors", bytes(range(256)) * (LARGE // 256))
    return folder


def of(folder: Path) -> str:
    return model_fingerprint(folder, "float32", "float32")


def test_equal_at_another_path_and_in_another_process(model: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "copy"
    shutil.copytree(model, moved)
    code = "import sys; from cache.fingerprint import *; print(model_fingerprint(sys.argv[1], 'float32', 'float32'))"
    other = subprocess.run([sys.executable, "-c", code, str(moved)], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == of(model)
    assert len(of(model)) == 32


@pytest.mark.parametrize("position", [0, SAMPLE_BYTES - 1, LARGE - SAMPLE_BYTES, LARGE - 1])
def test_c44_a_changed_weight_in_a_sampled_area_changes_it(model: Path, position: int) -> None:
    before = of(model)
    path = model / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) - LARGE + position] ^= 1
    path.write_bytes(data)
    assert of(model) != before


def test_every_byte_of_a_small_file_counts(model: Path) -> None:
    seen = set()
    for position in range(64):
        body = bytearray(64)
        body[position] = 1
        write_safetensors(model / "model.safetensors", bytes(body))
        seen.add(of(model))
    assert len(seen) == 64


def test_size_header_and_file_name_count(model: Path) -> None:
    seen = {of(model)}
    body = bytes(range(256)) * (LARGE // 256)
    write_safetensors(model / "model.safetensors", body + b"\0" * 256)
    seen.add(of(model))
    write_safetensors(model / "model.safetensors", body, name="v")
    seen.add(of(model))
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    seen.add(of(model))
    assert len(seen) == 4


def test_dtype_kv_dtype_and_config_count(model: Path) -> None:
    seen = {
        of(model),
        model_fingerprint(model, "bfloat16", "float32"),
        model_fingerprint(model, "float32", "bfloat16"),
    }
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 16}))
    seen.add(of(model))
    assert len(seen) == 4


def test_order_and_library_notes_in_the_config_do_not_count(model: Path) -> None:
    before = of(model)
    config = {"hidden_size": 8, "_name_or_path": "x", "transformers_version": "9", "model_type": "llama"}
    (model / "config.json").write_text(json.dumps(config, indent=2))
    assert of(model) == before


def test_files_that_are_no_weights_do_not_count(model: Path) -> None:
    before = of(model)
    (model / "README.md").write_text("hello")
    (model / "pytorch_model.bin").write_bytes(b"the same weights in another format")
    assert of(model) == before


def test_a_broken_header_is_still_hashed(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"\xff" * 100)
    first = of(model)
    (model / "model.safetensors").write_bytes(b"\xff" * 99 + b"\0")
    assert of(model) != first


def test_a_folder_without_config_or_weights_is_refused(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="no weights"):
        of(model)
    (model / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        of(model)
