"""The progress bar of a simulation."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

REFRESH_REQUESTS = 25


class RequestProgress:
    """Counts finished requests; shows every 25th, because drawing costs more than simulating one."""

    def __init__(self, progress: Progress, total: int):
        self._progress = progress
        self._task = progress.add_task("", total=total)
        self._pending = 0

    def begin(self, what: str) -> None:
        self.flush()
        self._progress.update(self._task, description=what)

    def advance(self, count: int = 1) -> None:
        self._pending += count
        if self._pending >= REFRESH_REQUESTS:
            self.flush()

    def flush(self) -> None:
        self._progress.advance(self._task, self._pending)
        self._pending = 0


@contextmanager
def request_progress(console: Console, total: int) -> Iterator[RequestProgress]:
    columns = (
        SpinnerColumn(), TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        shown = RequestProgress(progress, total)
        yield shown
        shown.flush()
