"""The kept digests of weight files: where they lie, and when one may be believed."""

import json
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from cache.fingerprint_digests import DIGEST_SCHEME

RECORD_NAME = ".weight-digests.json"
RECORDS_FOLDER = "digests"
MAX_RECORD_BYTES = 16 * 1024 * 1024
SETTLED_NS = 2_000_000_000
"""File systems count time in steps of up to two seconds. A write in the step in which a file was read leaves no trace
in its times, so a digest is kept only of a file whose last change was longer ago."""


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What changes when a file does. Size and mtime can be kept by who replaces it (`cp -p`, `rsync -t`, `touch -r`);
    ctime is set by the kernel at each change of content, times, owner or name, and another file has another inode.

    What it cannot show: writes below the file system, or a system clock put back to the same nanosecond.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> "FileStamp":
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def settled(self, now_ns: int) -> bool:
        return self.ctime_ns < now_ns - SETTLED_NS

    def made_up(self, read_only: bool) -> bool:
        """Whether it may be that of an image (squashfs, ISO), whose builder chose all times and inodes: the next build
        with other weights of the same size can have the same. Such times are whole seconds.

        read_only: whether the file system cannot be written to.
        """
        return read_only and self.ctime_ns % 1_000_000_000 == 0


@dataclass(frozen=True, slots=True)
class KeptDigest:
    stamp: FileStamp
    digest: str


def record_places(model_dir: str | Path, stores: Iterable[Path], cache_folder: Path | None) -> tuple[Path, ...]:
    """Where the record of a model folder may lie, best first.

    Beside the weights only in one of our own stores (`stores`: folders of model folders): another folder is its
    user's, and a record that came with somebody's weights would be their word for what these are.
    cache_folder: private to this user; None where there is none.
    """
    folder = Path(model_dir).resolve()
    beside = [folder / RECORD_NAME] if folder.parent in {store.resolve() for store in stores} else []
    if cache_folder is None:
        return tuple(beside)
    return (*beside, cache_folder / RECORDS_FOLDER / f"{sha256(os.fsencode(folder)).hexdigest()[:32]}.json")


def read_record(place: Path) -> dict[str, KeptDigest]:
    """Digests by the file's name; none where there is no record, or one that is torn, malformed, of another scheme, or
    that another user could have written."""
    try:
        with place.open("rb") as file:
            status = os.fstat(file.fileno())
            ours = status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o002
            if not (ours and stat.S_ISREG(status.st_mode) and status.st_size <= MAX_RECORD_BYTES):
                return {}
            fields = json.loads(file.read(MAX_RECORD_BYTES))
        if fields["scheme"] != DIGEST_SCHEME:
            return {}
        return {str(name): _kept_digest(**entry) for name, entry in fields["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _kept_digest(*, digest: Any, **stamp: Any) -> KeptDigest:
    """Raises TypeError or ValueError for what `write_record` would not have written."""
    if not all(type(value) is int for value in stamp.values()):
        raise TypeError("a stamp consists of whole numbers")
    if len(bytes.fromhex(digest)) != 32 or len(digest) != 64:
        raise ValueError("a digest has 64 hex digits")
    return KeptDigest(FileStamp(**stamp), digest)


def write_record(place: Path, folder: Path, kept: Mapping[str, KeptDigest]) -> None:
    """By a rename, so that whoever reads meanwhile, or writes the same, finds a whole record. Raises OSError.

    folder: whose weights these are, for people who look into the cache.
    """
    files = {name: asdict(each.stamp) | {"digest": each.digest} for name, each in sorted(kept.items())}
    text = json.dumps({"scheme": DIGEST_SCHEME, "folder": str(folder), "files": files}, indent=1)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = place.with_name(f".{place.name.lstrip('.')}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
            file.write(text)
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)
