"""`serve` hashes the weights once for the whole cluster, and not again at its next start."""

import json
import os
from pathlib import Path

import pytest

from cache import fingerprint_record
from cache.fingerprint_record import RECORD_NAME
from cluster.config import ServeConfig
from cluster.serving.app import cluster_spec


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprint_record, "SETTLED_NS", 0)  # the files have just been written
    return tmp_path / "cache" / "warmlane"


def model_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 64}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def hashed_bytes(model_dir: Path) -> int:
    told = [0]
    cluster_spec(ServeConfig(), model_dir, lambda done, total: told.append(done))
    return told[-1]


def test_digests_of_our_own_store_lie_beside_the_weights(caches: Path) -> None:
    model = model_in(caches / "models" / "small")
    assert [hashed_bytes(model) for _ in range(2)] == [len("weights"), 0]
    assert (model / RECORD_NAME).is_file()
    assert sorted(os.listdir(caches)) == ["models"]


def test_digests_of_a_users_folder_lie_in_the_cache(caches: Path, tmp_path: Path) -> None:
    model = model_in(tmp_path / "models" / "small")
    assert [hashed_bytes(model) for _ in range(2)] == [len("weights"), 0]
    assert sorted(os.listdir(model)) == ["config.json", "model.safetensors"]
    assert sorted(os.listdir(caches)) == ["digests"]


def test_clusters_of_another_dtype_or_of_other_weights_have_another_fingerprint(caches: Path, tmp_path: Path) -> None:
    model = model_in(tmp_path / "small")
    seen = {cluster_spec(ServeConfig(dtype=dtype), model).fingerprint for dtype in ("float32", "bfloat16")}
    (model / "model.safetensors").write_bytes(b"weightz")
    assert len(seen | {cluster_spec(ServeConfig(), model).fingerprint}) == 3
