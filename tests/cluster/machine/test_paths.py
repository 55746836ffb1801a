"""Run folders: short, private, and not for ever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.machine.paths import new_run_folder, remove_old_run_folders

LONGEST_SOCKET = "/h/" + "0" * 56 + "/a"
"""Where Ray makes HAProxy put its admin socket; HAProxy takes paths of up to 97 characters."""


@pytest.mark.parametrize("parent", [None, "/tmp/a/quite/long/folder/that/somebody/set/as/the/temporary/one"])
def test_a_run_folder_is_private_and_short_enough_for_sockets(
    monkeypatch: pytest.MonkeyPatch, parent: str | None
) -> None:
    if parent is not None:
        monkeypatch.setattr("tempfile.tempdir", parent)
    folder = new_run_folder()
    try:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(str(folder) + LONGEST_SOCKET) <= 97
    finally:
        (folder / "pid").unlink()
        folder.rmdir()


def test_old_folders_of_dead_clusters_go_and_all_others_stay(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name, pid in (("wlc-dead", dead.pid), ("wlc-alive", os.getpid()), ("wlc-young", dead.pid), ("other", dead.pid)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pid").write_text(str(pid))
        if name != "wlc-young":
            os.utime(tmp_path / name, (0, 0))
    (tmp_path / "wlc-unknown").mkdir()
    os.utime(tmp_path / "wlc-unknown", (0, 0))
    remove_old_run_folders(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"wlc-alive", "wlc-young", "wlc-unknown", "other"}
