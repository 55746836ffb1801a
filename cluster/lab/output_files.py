"""Whether results can be written, asked before minutes of work whose result would be lost."""

from collections.abc import Mapping
from pathlib import Path


def check_outputs(paths: Mapping[str, Path | None], inputs: Mapping[str, Path | None] | None = None) -> None:
    """paths, inputs: what is written and what is read, by the flag that named it. Leaves no file that was not there.

    Raises ValueError that names the flag: a folder, a folder that is missing, a file that cannot be written, two flags
    that name one file.
    """
    flags = {path.resolve(): flag for flag, path in (inputs or {}).items() if path is not None and path.is_file()}
    for flag, path in paths.items():
        if path is None:
            continue
        try:
            _try_to_write(flag, path)
        except OSError as error:
            raise ValueError(f"{flag}: {path} cannot be written: {error.strerror}") from error
        other = flags.setdefault(path.resolve(), flag)
        if other != flag and (path.is_file() or not path.exists()):  # two may well go to /dev/null
            raise ValueError(f"{flag} and {other} name the same file, {path}")


def _try_to_write(flag: str, path: Path) -> None:
    """Only opening tells: permissions, a mount that is read-only, a name too long."""
    if path.is_dir():
        raise ValueError(f"{flag} must name a file, and {path} is a folder")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{flag}: there is no folder {path.parent} to write {path.name} into")
    is_new = not path.exists()
    if is_new or path.is_file():  # a pipe would wait for its reader
        path.open("ab").close()
    if is_new:
        path.resolve().unlink()
