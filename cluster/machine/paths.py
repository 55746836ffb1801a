"""Where Warmlane keeps what it downloads and what a running cluster needs."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import psutil

RUN_FOLDER_PREFIX = "wlc-"


def new_run_folder() -> Path:
    """A folder for one cluster: sockets, HAProxy's files, Ray's session, the log. Private to the user.

    Its path is short, because Ray and HAProxy put Unix sockets some 70 characters deeper and HAProxy's limit is 97. On
    a machine whose $TMPDIR is long, /tmp is taken.
    """
    parent = tempfile.gettempdir()
    if len(parent) > 12:
        parent = "/tmp"
    remove_old_run_folders(Path(parent))
    folder = Path(tempfile.mkdtemp(prefix=RUN_FOLDER_PREFIX, dir=parent))
    (folder / "pid").write_text(str(os.getpid()))
    return folder


def remove_old_run_folders(parent: Path, age_seconds: float = 24 * 3600) -> None:
    """Folders of clusters that failed (kept for their log) or were killed, a day after their process ended."""
    for folder in parent.glob(RUN_FOLDER_PREFIX + "*"):
        try:
            pid = int((folder / "pid").read_text())
            old = time.time() - folder.stat().st_mtime > age_seconds and folder.stat().st_uid == os.getuid()
        except (OSError, ValueError):  # somebody else's, or just being made
            continue
        if old and not psutil.pid_exists(pid):
            shutil.rmtree(folder, ignore_errors=True)
