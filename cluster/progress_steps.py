"""Long work on a terminal: one line per step, with a bar where the total is known."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

Unit = Literal["bytes", "tensors", "replicas", ""]


class Step:
    """One step that is under way."""

    def __init__(self, progress: Progress, task: TaskID):
        self._progress, self._task = progress, task

    def update(self, completed: float, total: float | None = None) -> None:
        self._progress.update(self._task, completed=completed, total=total)

    def describe(self, text: str) -> None:
        self._progress.update(self._task, description=text)


class ProgressSteps:
    """Steps one after another, under a live display on a terminal and as plain lines elsewhere."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console(stderr=True, quiet=True)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    @contextmanager
    def step(self, text: str, total: float | None = None, unit: Unit = "") -> Iterator[Step]:
        """total: in `unit`s; None shows a moving bar until `Step.update` gives one."""
        if not self.console.is_terminal:
            self.say(text)
        columns: list[ProgressColumn] = [SpinnerColumn(finished_text=" "), TextColumn("{task.description}")]
        if unit:
            columns += [BarColumn(), DownloadColumn() if unit == "bytes" else MofNCompleteColumn()]
        columns.append(TimeElapsedColumn())
        progress = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        with progress:
            task = progress.add_task(text, total=total)
            yield Step(progress, task)
            done = progress.tasks[0].total or 1
            progress.update(task, completed=done, total=done)
