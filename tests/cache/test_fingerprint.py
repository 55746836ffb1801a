"""The fingerprint names the weights: it moves with them and with nothing else."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from cache.fingerprint import model_fingerprint
from cache.fingerprint_digests import PART_BYTES

LARGE = 2 * PART_BYTES + 256 * 1024


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


@pytest.mark.parametrize("position", [0, 1_000_003, PART_BYTES - 1, PART_BYTES, LARGE // 2, 2 * PART_BYTES, LARGE - 1])
def test_c44_one_changed_byte_anywhere_changes_it(model: Path, position: int) -> None:
    before = of(model)
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(position - LARGE, 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    assert of(model) != before


def test_swapped_parts_change_it(model: Path) -> None:
    seen = set()
    for first, second in ((b"a", b"b"), (b"b", b"a"), (b"a", b"a")):
        (model / "model.safetensors").write_bytes(first * PART_BYTES + second * PART_BYTES)
        seen.add(of(model))
    assert len(seen) == 3


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


def test_every_process_of_this_version_computes_the_same_and_none_of_the_one_before(model: Path) -> None:
    """Another layout needs another FINGERPRINT_SCHEME: then this changes, as it did when samples became all bytes."""
    write_safetensors(model / "model.safetensors", bytes(range(256)))
    assert of(model) == "4e86fa3deed116a3de948611637685e2"
    assert of(model) != "72609c6577af116f0b47b05b67a158a4", "that of warmlane-model-1"


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
