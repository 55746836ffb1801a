"""The key of block keys that a machine keeps for all it deploys."""

import contextlib
import os
import secrets
from pathlib import Path

_NUM_BYTES = 32


def cluster_secret(folder: Path) -> bytes:
    """The one in `folder`, drawn and written where there is none, for this user alone.

    An application that is deployed again goes on with the same secret, so that while one process after the other is
    replaced the old and the new ones understand each other. Safe to call from several processes at once. Raises
    OSError, or ValueError for a file of something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "secret"
    if not path.exists():
        drawn = folder / f".secret-{os.getpid()}-{secrets.token_hex(4)}"
        with os.fdopen(os.open(drawn, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(_NUM_BYTES))
        with contextlib.suppress(FileExistsError):  # somebody else was faster: a link, unlike a rename, leaves theirs
            os.link(drawn, path)
        drawn.unlink()
    try:
        secret = bytes.fromhex(path.read_text().strip())
    except ValueError as error:
        raise ValueError(f"{path} must hold {2 * _NUM_BYTES} hex digits; remove it and a new one is drawn") from error
    if len(secret) != _NUM_BYTES:
        raise ValueError(f"{path} must hold {2 * _NUM_BYTES} hex digits, got {2 * len(secret)}")
    return secret
