"""A cluster of its own, for as long as some tests need it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.lab.cluster_process import ClusterProcess

READY_SECONDS = 240.0


@contextmanager
def running_cluster(
    arguments: Sequence[str],
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    before_stop: Callable[[ClusterProcess], None] = lambda process: None,
) -> Iterator[ClusterProcess]:
    """`warmlane serve` as a user starts it, ready. folder: for what it prints. before_stop: called while its files are
    still there.

    AssertionError when stopping it leaves a process behind.
    """
    process = ClusterProcess(arguments, output_path=folder / "serve.log", env=env)
    try:
        process.start()
        process.wait_ready(timeout_seconds=READY_SECONDS)
        yield process
        before_stop(process)
    finally:
        left = process.stop()
    assert left == [], "Ctrl-C left processes behind"


def run_folder(process: ClusterProcess) -> Path | None:
    """Where the cluster's own files are until it has stopped; None where it has not said so."""
    printed = re.search(r"log  (\S+)", process.output_path.read_text(errors="replace"))
    return None if printed is None else Path(printed[1]).parent
