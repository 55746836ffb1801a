"""Files that are not what they should be, and disks that fail: misses and counts, never an exception."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cache.tiers.disk_folder import DiskFolder
from cache.tiers.disk_format import HEADER_BYTES
from cache.tiers.disk_writer import FULL_SECONDS, RETRY_SECONDS
from tests.cache.tiers.disk_pages import PAGE_BYTES, Clock, Tier, bytes_for, bytes_taken, change_byte, key

FILE_BYTES = HEADER_BYTES + PAGE_BYTES


def truncated(path: Path, at: int) -> None:
    os.truncate(path, at)


def replaced_by_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("x")


def replaced_by_a_link(path: Path) -> None:
    aside = path.parent / "aside"
    path.rename(aside)
    path.symlink_to(aside)


def replaced_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: truncated(path, 0), "torn"),
    "half a header": (lambda path: truncated(path, HEADER_BYTES - 1), "torn"),
    "header alone": (lambda path: truncated(path, HEADER_BYTES), "torn"),
    "one byte short": (lambda path: truncated(path, FILE_BYTES - 1), "torn"),
    "one byte long": (lambda path: truncated(path, FILE_BYTES + 1), "corrupt"),
    "much too long": (lambda path: truncated(path, 2**40), "corrupt"),
    "magic": (lambda path: change_byte(path, 0), "foreign"),
    "version": (lambda path: change_byte(path, 8), "foreign"),
    "identity": (lambda path: change_byte(path, 12), "corrupt"),
    "a key": (lambda path: change_byte(path, 70), "corrupt"),
    "padding": (lambda path: change_byte(path, HEADER_BYTES - 5), "corrupt"),
    "header's checksum": (lambda path: change_byte(path, HEADER_BYTES - 1), "corrupt"),
    "nothing but zeros": (lambda path: path.write_bytes(bytes(FILE_BYTES)), "foreign"),
    "directory": (replaced_by_a_directory, "foreign"),
    "link": (replaced_by_a_link, "foreign"),
    "pipe": (replaced_by_a_pipe, "foreign"),
}
SEEN_BY_READING = {
    "first byte": (lambda path: change_byte(path, HEADER_BYTES), "corrupt"),
    "last byte": (lambda path: change_byte(path, FILE_BYTES - 1), "corrupt"),
    "zeros": (lambda path: path.write_bytes(path.read_bytes()[:HEADER_BYTES].ljust(FILE_BYTES, b"\0")), "corrupt"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*SPOILT, *SEEN_BY_READING, "missing"])
def test_a_spoilt_file_is_a_miss_removed_and_counted(tmp_path: Path, name: str) -> None:
    tier = Tier(tmp_path)
    tier.put(1, 2)
    spoil, cause = (SPOILT | SEEN_BY_READING | {"missing": (Path.unlink, "missing")})[name]
    spoil(tier.file(1))
    assert not tier.has(1) and not tier.find(key(1))
    assert tier.counts.failures == {cause: 1} and tier.counts.removed_pages == 1
    tier.work()
    assert not os.path.lexists(tier.file(1))
    assert tier.told[-1] == ([], [key(1)]) and tier.num_bytes == bytes_for(1)
    assert tier.has(2)
    tier.put(1)
    assert tier.has(1) and tier.restarted().found() == {1, 2}


@pytest.mark.parametrize("name", SPOILT)
def test_a_start_removes_a_spoilt_file_and_counts_it(tmp_path: Path, name: str) -> None:
    tier = Tier(tmp_path)
    tier.put(1, 2)
    spoil, cause = SPOILT[name]
    spoil(tier.file(1))
    again = tier.restarted(num_pages=2)
    assert again.found() == {2} and again.counts.failures == {cause: 1} and again.num_bytes == bytes_for(1)
    assert not os.path.lexists(again.file(1))


def test_a_link_is_removed_and_not_what_it_points_to(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.put(1)
    replaced_by_a_link(tier.file(1))
    assert not tier.has(1)
    tier.work()
    assert (tier.file(1).parent / "aside").stat().st_size == FILE_BYTES


def test_a_page_under_another_name_is_never_served(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.put(1, 2)
    shutil.copy(tier.file(1), tier.file(2))
    shutil.copy(tier.file(1), tier.file(3))
    assert not tier.has(2)
    again = tier.restarted()
    assert again.found() == {1} and again.counts.failures == {"corrupt": 1}


def test_another_pages_blob_under_this_header_is_never_served(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.put(1, 2)
    blob = tier.file(2).read_bytes()[HEADER_BYTES:]
    tier.file(1).write_bytes(tier.file(1).read_bytes()[:HEADER_BYTES] + blob)
    assert tier.restarted().has(2) and not tier.has(1)


@pytest.mark.parametrize(
    "settings", [{"identity": b"other weights"}, {"page_bytes": PAGE_BYTES + 1}, {"page_bytes": 9}]
)
def test_pages_of_another_model_are_foreign(tmp_path: Path, settings: dict[str, object]) -> None:
    tier = Tier(tmp_path)
    tier.put(1, 2)
    other = tier.restarted(**settings)
    assert other.found() == set() and other.counts.failures == {"foreign": 2}
    assert other.num_bytes == bytes_for(0) and not list(tmp_path.rglob("*.page"))


def test_files_that_are_not_ours_by_name_are_left_alone(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.put(1)
    places = [tmp_path, tmp_path / "0", tier.file(1).parent]
    names = [
        "notes.txt",
        "0" * 31 + ".page",
        "0" * 33 + ".page",
        "G" * 32 + ".page",
        "0" * 32 + ".page.bak",
        "cleared.txt",
    ]
    for place in places:
        for name in names:
            (place / name).write_text("mine")
    again = tier.restarted()
    assert again.found() == {1}
    again.clear()
    again.work()
    assert all((place / name).read_text() == "mine" for place in places for name in names)
    assert not list(tmp_path.rglob("cleared.????????????????"))


def test_what_was_not_written_to_its_end_is_removed_at_the_start(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.put(1)
    tier.file(1).rename(tmp_path / "0" / "writing.tmp")
    again = tier.restarted()
    assert again.found() == set() and not list(tmp_path.rglob("*.tmp")) and again.num_bytes == bytes_for(0)


class Disk:
    """Fails as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None  # files that still find room
        self.error: int | None = None
        write = DiskFolder.write

        def limited(folder: DiskFolder, header: bytes, blob: memoryview, stamp: int) -> None:
            error = self.error or (errno.ENOSPC if self.room is not None and self.num_files(folder) >= self.room else 0)
            if error:
                (folder.path / "writing.tmp").write_bytes(header)  # it comes so far
                raise OSError(error, os.strerror(error))
            write(folder, header, blob, stamp)

        monkeypatch.setattr(DiskFolder, "write", limited)

    def num_files(self, folder: DiskFolder) -> int:
        return len(list(folder.path.rglob("*.page")))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def warnings_of(caplog: pytest.LogCaptureFixture) -> int:
    return sum("disk tier" in record.getMessage() for record in caplog.records)


def test_a_full_disk_is_one_warning_and_a_smaller_cache(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.room, clock = 3, Clock()
    tier = Tier(tmp_path, clock=clock)
    tier.put(1, 2, 3, 4)
    assert tier.found() == {1, 2, 3} and tier.counts.failures == {"full": 1}
    tier.put(5, 6)
    assert tier.found() == {3, 5, 6}  # in the room that there is, by use
    clock.now += FULL_SECONDS
    tier.put(7)
    assert tier.found() == {3, 5, 6} and tier.counts.failures == {"full": 2}
    assert warnings_of(caplog) == 1 and not list(tmp_path.rglob("*.tmp"))

    disk.room = None  # somebody made room
    clock.now += FULL_SECONDS
    tier.put(7, 8)
    assert tier.found() == {3, 5, 6, 7, 8} and all(tier.has(number) for number in (3, 5, 6, 7, 8))
    disk.room = 5
    tier.put(9)
    assert warnings_of(caplog) == 2


def test_a_disk_without_any_room_refuses_at_once(tmp_path: Path, disk: Disk) -> None:
    disk.room, clock = 0, Clock()
    tier = Tier(tmp_path, clock=clock)
    tier.put(1)
    assert not tier.give(2) and tier.counts.refused == {"full": 1}
    disk.room = 1
    clock.now += FULL_SECONDS
    tier.put(2)
    assert tier.found() == {2}


def test_a_disk_that_fails_is_one_warning_and_tried_again(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    tier = Tier(tmp_path, clock=clock)
    tier.put(1)
    disk.error = errno.EIO
    for number in (2, 3):
        tier.put(number)
        assert not tier.give(9) and tier.work() == RETRY_SECONDS
        clock.now += RETRY_SECONDS
    assert tier.counts.failures == {"io": 2} and tier.counts.refused == {"failed": 2}
    assert tier.has(1) and warnings_of(caplog) == 1
    disk.error = None
    tier.put(2)
    assert tier.found() == {1, 2}


def test_a_folder_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    clock = Clock()
    tier = Tier(tmp_path / "root", clock=clock)
    tier.put(1, 2)
    shutil.rmtree(tmp_path / "root")
    assert not tier.has(1)
    tier.put(3)  # notices it
    clock.now += RETRY_SECONDS
    tier.put(4)
    assert tier.found() == {4} and tier.has(4)
    assert tier.num_bytes == bytes_for(1)
    stored = {block for change in tier.told for block in change[0]}
    removed = {block for change in tier.told for block in change[1]}
    assert stored - removed == {key(4)}
    assert tier.restarted().found() == {4}


def test_a_folder_that_cannot_be_had_is_a_warning_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("x")
    clock = Clock()
    tier = Tier(tmp_path / "file", clock=clock)
    assert not tier.give(1) and tier.work() == RETRY_SECONDS and not tier.find(key(1))
    assert tier.counts.refused == {"failed": 1} and warnings_of(caplog) == 1
    tier.clear()
    clock.now += RETRY_SECONDS
    assert tier.work() == RETRY_SECONDS
    (tmp_path / "file").unlink()
    clock.now += RETRY_SECONDS
    tier.put(1)
    assert tier.has(1)


def test_a_clear_that_the_disk_refuses_is_done_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: DiskFolder) -> None:
        raise OSError(errno.EROFS, "read only")

    clock = Clock()
    tier = Tier(tmp_path, clock=clock)
    tier.put(1)
    with monkeypatch.context() as patched:
        patched.setattr(DiskFolder, "set_aside", fails)
        tier.clear()
        assert not tier.has(1) and not tier.give(1)
        clock.now += RETRY_SECONDS
        tier.work()
    clock.now += RETRY_SECONDS
    tier.put(2)
    assert tier.restarted().found() == {2}


def test_a_file_that_cannot_be_removed_is_counted_in_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: DiskFolder, block: bytes) -> bool:
        raise OSError(errno.EPERM, "immutable")

    clock = Clock()
    tier = Tier(tmp_path, num_pages=2, clock=clock)
    tier.put(1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(DiskFolder, "remove", fails)
        tier.put(3)
    assert tier.found() == {2} and bytes_taken(tmp_path / "0") <= bytes_for(2)
    clock.now += RETRY_SECONDS
    tier.put(4)
    assert tier.found() == {4} and bytes_taken(tmp_path / "0") <= bytes_for(2)


def test_a_process_without_descriptors_keeps_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    tier = Tier(tmp_path)
    tier.put(1)
    with monkeypatch.context() as patched:
        patched.setattr(DiskFolder, "read", fails)
        assert not tier.has(1)
    assert tier.has(1) and tier.counts.failures == {"io": 1}


def test_a_start_without_descriptors_keeps_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    tier = Tier(tmp_path)
    tier.put(1)
    with monkeypatch.context() as patched:
        patched.setattr(DiskFolder, "read_header", fails)
        tier = tier.restarted()
    assert tier.found() == set() and tier.counts.failures == {"io": 1}
    assert tier.restarted().has(1)


def test_a_disk_that_cannot_read_a_page_loses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(errno.EIO, "sector")

    tier = Tier(tmp_path)
    tier.put(1)
    monkeypatch.setattr(DiskFolder, "read", fails)
    assert not tier.has(1) and not tier.find(key(1)) and tier.counts.failures == {"io": 1}


FILL = """
import sys
from pathlib import Path
from tests.cache.tiers.disk_pages import Clock, Tier, bytes_taken
from cache.tiers.disk_writer import FULL_SECONDS
root, clock = Path(sys.argv[1]), Clock()
(root / "others").write_bytes(bytes(500_000))
tier = Tier(root, num_pages=1000, clock=clock)
tier.put(*range(200))
few = tier.found(200)
assert 0 < len(few) < 60 and max(few) == 199, few
assert tier.counts.failures == {"full": 1}, tier.counts
(root / "others").unlink()
clock.now += FULL_SECONDS
tier.put(*range(200, 400))
more = tier.found(400)
assert len(more) > len(few) + 30 and max(more) == 399, (len(few), len(more))
assert all(tier.has(number) for number in more)
assert tier.restarted(num_pages=1000).found(400) == more
"""


def test_a_real_full_disk(tmp_path: Path) -> None:
    """One MiB of it, in a name space of mounts that ends with the process."""
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" && shift && exec "$@"'
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    run = subprocess.run([*inside, sys.executable, "-c", FILL, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
