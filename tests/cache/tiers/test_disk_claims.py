"""Processes with the same folder: each has a sub-folder, and finds after a restart what one of them left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cache.tiers import disk_folder
from tests.cache.tiers.disk_pages import Tier, key

HOLD = """
import sys
from pathlib import Path
from tests.cache.tiers.disk_pages import Tier
tier = Tier(Path(sys.argv[1]))
tier.put(1)
print(tier.file(1), flush=True)
sys.stdin.read()
"""


def test_two_tiers_of_one_folder_do_not_meet(tmp_path: Path) -> None:
    one, other = Tier(tmp_path), Tier(tmp_path)
    one.put(1)
    other.put(1, 2)
    assert (one.found(), other.found()) == ({1}, {1, 2})
    one.clear()
    one.work()
    assert other.has(1) and other.has(2)
    assert {one.file(1).parts[-3], other.file(1).parts[-3]} == {"0", "1"}


def test_each_that_starts_again_takes_over_one_of_them(tmp_path: Path) -> None:
    tiers = [Tier(tmp_path) for _ in range(3)]
    for number, tier in enumerate(tiers):
        tier.put(number)
    tiers[1].close()
    middle = Tier(tmp_path)
    middle.work()
    assert middle.found() == {1}
    for tier in (tiers[2], tiers[0], middle):
        tier.close()
    again = [Tier(tmp_path) for _ in range(3)]
    for tier in again:
        tier.work()
    assert [tier.found() for tier in again] == [{0}, {1}, {2}]


def test_another_processs_sub_folder_is_free_when_it_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == f"{tmp_path}/0/pages/{key(1).hex()}.page\n"
        beside = Tier(tmp_path)
        beside.work()
        assert beside.found() == set() and beside.file(1).parts[-3] == "1"
    finally:
        holder.kill()
        holder.communicate()
    after = Tier(tmp_path)
    after.work()
    assert after.has(1)


def test_what_is_no_folder_of_ours_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "0").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "1").write_text("a file")
    (tmp_path / "2" / "warmlane.lock").mkdir(parents=True)
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "warmlane.lock").symlink_to(tmp_path / "elsewhere" / "lock")
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "pages").symlink_to(tmp_path / "elsewhere")
    tier = Tier(tmp_path)
    tier.put(1)
    assert tier.file(1).parts[-3] == "5" and not any((tmp_path / "elsewhere").iterdir())


def test_a_lock_that_was_removed_before_it_was_taken_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock_after_removal(descriptor: int, operation: int) -> None:
        lock.unlink(missing_ok=True)

    lock = tmp_path / "0" / "warmlane.lock"
    monkeypatch.setattr(disk_folder.fcntl, "flock", flock_after_removal)
    tier = Tier(tmp_path)
    assert tier._state.folder is not None and tier._state.folder.path.name == "1"


def test_more_processes_than_sub_folders_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_folder, "MAX_SUBFOLDERS", 1)
    one, other = Tier(tmp_path), Tier(tmp_path)
    assert one.give(1) and not other.give(1) and "in use" in caplog.text


def test_a_child_of_the_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=False,
    )
    assert child.stdout is not None
    try:
        child.stdout.readline()
        tier.die()
        assert Tier(tmp_path)._state.folder.path.name == "0"  # type: ignore[union-attr]
    finally:
        child.communicate(b"\n")


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    tier = Tier(tmp_path, num_pages=2)
    tier.put(1, 2, 3)
    assert tier.has(3)
    tier.clear()
    tier.work()
    tier.close()
    assert os.listdir("/proc/self/fd") == before
