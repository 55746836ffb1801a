"""Where Warmlane keeps what it downloads and what a running cluster needs."""

import os
import tempfile
from pathlib import Path


def cache_root() -> Path:
    """$XDG_CACHE_HOME/warmlane, by default ~/.cache/warmlane. Not created here."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "warmlane"


def new_run_folder() -> Path:
    """A folder for one cluster: sockets, HAProxy's files, Ray's session, the log. Private to the user.

    Its path is short, because Ray and HAProxy put Unix sockets some 70 characters deeper and HAProxy's limit is 97. On
    a machine whose $TMPDIR is long, /tmp is taken.
    """
    parent = tempfile.gettempdir()
    if len(parent) > 12:
        parent = "/tmp"
    return Path(tempfile.mkdtemp(prefix="wlc-", dir=parent))
