"""The secret that a deployment keeps from one `serve deploy` to the next."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.serving.cluster_secret import cluster_secret


def test_it_is_drawn_once_and_for_the_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    secret = cluster_secret(folder)
    assert len(secret) == 32
    assert cluster_secret(folder) == secret != cluster_secret(tmp_path / "other")
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["secret"]


def test_all_who_ask_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(lambda _: cluster_secret(tmp_path), range(64)))) == 1


@pytest.mark.parametrize("content", ["", "ab" * 31, "no hex"])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "secret").write_text(content)
    with pytest.raises(ValueError, match="secret must hold 64 hex digits"):
        cluster_secret(tmp_path)
