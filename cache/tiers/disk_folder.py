"""The files of a disk tier: one sub-folder that this process alone writes, in it a file for each page."""

import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from cache.block_hasher import BlockKey
from cache.tiers.disk_format import HEADER_BYTES, FaultCause, PageFault, PageFormat

MAX_SUBFOLDERS = 1024
BLOCK_BYTES = 4096
ENTRY_BYTES = 256  # of a directory: on ext4 a name takes 48, and it may be half full and never shrinks
OWN_BYTES = 8 * BLOCK_BYTES  # the sub-folder, the lock, the folder of pages, and folders that were set aside
PAGES = "pages"
LOCK = "warmlane.lock"
_PAGE_NAME = re.compile(r"([0-9a-f]{32})\.page")
_ASIDE_NAME = re.compile(r"cleared\.[0-9a-f]{16}")
_OPEN_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe of that name would block

OUR_OWN_LACK = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # this process lacks something; the file may be fine


def bytes_on_disk(file_bytes: int) -> int:
    """What a file takes: whole blocks, and its share of the directory."""
    return -(-file_bytes // BLOCK_BYTES) * BLOCK_BYTES + ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file with a page's name. stamp: its time of change in ns, which says in what order pages were used last."""

    key: BlockKey
    stamp: int
    num_bytes: int


class DiskFolder:
    """`<root>/<number>/`, the first one that no living process has: `flock` on a file in it says so, and ends
    with the process. So a cluster that starts again finds what its replicas left, whichever takes which.

    All methods raise OSError when the disk does. Only the owner's writer calls them, but for `read` and `set_aside`.
    """

    def __init__(self, root: Path, page_format: PageFormat):
        """Raises OSError where the root cannot be made or no sub-folder of it can be had."""
        self._format = page_format
        self.path, self._lock = _claim(root)
        self._pages = self.path / PAGES
        self._temporary = self.path / "writing.tmp"  # not among the pages, which `set_aside` takes away meanwhile

    def release(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)  # a child that is about to start may have the descriptor, too
        os.close(self._lock)

    def is_ours(self) -> bool:
        """Whether the sub-folder is still the one that was claimed: somebody may have removed it."""
        try:
            return os.path.samestat(os.fstat(self._lock), os.stat(self.path / LOCK)) and self._pages.is_dir()
        except OSError:
            return False

    def page_path(self, key: BlockKey) -> Path:
        return self._pages / f"{key.hex()}.page"

    def write(self, header: bytes, blob: memoryview, stamp: int) -> None:
        """A whole page under a temporary name. Nothing is synced: a file that a loss of power tore has a wrong
        checksum, which is a miss, and a sync for each page would cost more than the write."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._temporary, flags, 0o600)
        try:
            written = os.writev(descriptor, [header, blob])
            while written < len(header):
                written += os.write(descriptor, header[written:])
            while written < len(header) + len(blob):
                written += os.write(descriptor, blob[written - len(header) :])
            os.utime(descriptor, ns=(stamp, stamp))
        finally:
            os.close(descriptor)

    def place(self, key: BlockKey) -> None:
        """What was written last becomes the page of this key, whole or not at all."""
        try:
            os.rename(self._temporary, self.page_path(key))
        except IsADirectoryError:
            _remove(self.page_path(key))
            os.rename(self._temporary, self.page_path(key))

    def drop_temporary(self) -> None:
        with suppress(OSError):
            _remove(self._temporary)

    def remove(self, key: BlockKey) -> bool:
        """False where nothing was there."""
        return _remove(self.page_path(key))

    def read(self, key: BlockKey, page: Sequence[BlockKey], target: memoryview, stamp: int) -> None:
        """The page's blob into the target, whose bytes mean nothing when this raises OSError or PageFault."""
        header = bytearray(HEADER_BYTES)
        with self._opened(key) as (descriptor, file_bytes):
            num_read = os.readv(descriptor, [header, target])
            while HEADER_BYTES <= num_read < self._format.file_bytes:
                more = os.readv(descriptor, [target[num_read - HEADER_BYTES :]])
                if not more:
                    raise PageFault("torn")
                num_read += more
            keys, blob_sum = self._format.read_header(header[:num_read], file_bytes, key)
            if keys != tuple(page):
                raise PageFault("corrupt")
            self._format.check_blob(target, blob_sum)
            with suppress(OSError):  # a folder that can only be read
                os.utime(descriptor, ns=(stamp, stamp))

    def read_header(self, key: BlockKey) -> tuple[BlockKey, ...]:
        """Block keys of the page in that file, without its blob. Raises PageFault, too."""
        with self._opened(key) as (descriptor, file_bytes):
            return self._format.read_header(os.read(descriptor, HEADER_BYTES), file_bytes, key)[0]

    @contextmanager
    def _opened(self, key: BlockKey) -> Iterator[tuple[int, int]]:
        """Descriptor and size of a page's file."""
        try:
            descriptor = os.open(self.page_path(key), _OPEN_TO_READ)
        except OSError as error:
            faults: dict[int | None, FaultCause] = {errno.ENOENT: "missing", errno.ELOOP: "foreign"}
            if error.errno in faults:
                raise PageFault(faults[error.errno]) from None
            raise
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise PageFault("foreign")
            yield descriptor, status.st_size
        finally:
            os.close(descriptor)

    def found(self) -> list[FoundFile]:
        """All files with a page's name, whatever they are, the one used last first."""
        files = []
        with os.scandir(self._pages) as entries:
            for entry in entries:
                if name := _PAGE_NAME.fullmatch(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    key = bytes.fromhex(name[1])
                    files.append(FoundFile(key, status.st_mtime_ns, bytes_on_disk(status.st_size)))
        return sorted(files, key=lambda file: (file.stamp, file.key), reverse=True)

    def set_aside(self) -> None:
        """All pages out of reach at once, also of a process that starts after this one was killed."""
        with suppress(FileNotFoundError):  # where this was tried before
            os.rename(self._pages, self.path / f"cleared.{token_hex(8)}")
        self._pages.mkdir(mode=0o700, exist_ok=True)

    def remove_set_aside(self) -> None:
        for folder in [path for path in self.path.iterdir() if _ASIDE_NAME.fullmatch(path.name)]:
            _sync(self.path)  # or a loss of power could bring back what was cleared
            for path in folder.iterdir():
                if _PAGE_NAME.fullmatch(path.name):
                    _remove(path)
                else:
                    os.rename(path, self._pages / path.name)  # not ours
            folder.rmdir()


def _claim(root: Path) -> tuple[Path, int]:
    """The first sub-folder that nobody has, and the descriptor that holds its lock."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(MAX_SUBFOLDERS):
        path = root / str(number)
        if _is_own_folder(path) and _is_own_folder(path / PAGES):
            lock = _locked(path / LOCK)
            if lock is not None:
                return path, lock
    raise OSError(errno.EBUSY, f"all {MAX_SUBFOLDERS} sub-folders are in use", str(root))


def _is_own_folder(path: Path) -> bool:
    """Makes it where nothing is there."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _locked(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENXIO):  # no lock of ours
            return None
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):  # else it was removed before it was locked
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _remove(path: Path) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except IsADirectoryError:
        shutil.rmtree(path)
    return True


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
