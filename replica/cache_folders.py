"""Where files are kept from one start to the next: the first folder of several that can be used."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

NAME = "warmlane"


def cache_folders() -> list[Path]:
    """Candidates, best first: $XDG_CACHE_HOME/warmlane, ~/.cache/warmlane, one of this user in the temporary folder.

    In a container there may be no HOME and a user id without a name: then there is no home folder either.
    """
    found = []
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        found.append(Path(base) / NAME)
    with contextlib.suppress(RuntimeError):
        found.append(Path.home() / ".cache" / NAME)
    return [*found, Path(tempfile.gettempdir()) / f"{NAME}-{os.getuid()}"]


def cache_root() -> Path:
    """The first candidate that can be used; the last one where none can."""
    folders = cache_folders()
    return next((folder for folder in folders if usable(folder)), folders[-1])


def usable(folder: Path) -> bool:
    """Makes the folder where it is missing. False where it cannot be made or written to, and where others may write to
    it: what lies there is run."""
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat() if folder.parent == Path(tempfile.gettempdir()) else folder.stat()
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode):  # in the temporary folder anybody may have put a link in its place
        return False
    private = status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o002
    return private and os.access(folder, os.W_OK | os.X_OK)
