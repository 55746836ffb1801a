"""Child processes that never outlive their parent (Linux)."""

import contextlib
import ctypes
import os
import signal
import time

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded before any fork: between fork and exec only the bare call may happen.
_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent(signum: signal.Signals = signal.SIGKILL) -> None:
    """For `preexec_fn`: the kernel sends the signal when the thread that started this child ends, however it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signum)


def adopt_orphans() -> None:
    """From now on descendants whose parent dies become children of this process instead of init's."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_all_children(seconds: float = 10.0) -> None:
    """Kills every descendant of this process and waits until the kernel has let go of them.

    Repeated, because killing a parent brings its children here, and one may have started another meanwhile.
    """
    deadline = time.monotonic() + seconds
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=0.5)
        _reap()
        if time.monotonic() > deadline:
            return


def _reap() -> None:
    """Takes the exit codes of adopted children, which would stay zombies."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
