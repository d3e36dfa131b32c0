"""Progress with rate and time left on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn, TaskID

Measure = Literal["bytes", "steps", "share"]
"""What progress is counted in; a share goes from 0 to 1."""


class Progress:
    """Told how far the work is; shows it if there is somebody to see it."""

    def __init__(self, bar: Bar | None = None, task: TaskID | None = None) -> None:
        self._bar, self._task = bar, task

    def add(self, more: float) -> None:
        """So much more is done."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, more)

    def reach(self, done: float) -> None:
        """So much is done in all."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)


class Board:
    """Told how far each of several runs is; shows them as a table if there is somebody to see it."""

    def __init__(self, bar: Bar | None = None, tasks: Sequence[TaskID] = ()) -> None:
        self._bar, self._tasks = bar, tasks

    def reach(self, place: int, done: int, loss: float | None, rate: float | None) -> None:
        """So many steps of the run at this place are done, at so many tokens per second of its own."""
        if self._bar is not None:
            told = "" if loss is None else f"loss {loss:.4f}"
            speed = "" if rate is None else f"{rate:,.0f} tokens/s"
            self._bar.update(self._tasks[place], completed=done, loss=told, rate=speed)


@contextmanager
def showing(title: str, measure: Measure, total: float | None = 1, done: int = 0) -> Iterator[Progress]:
    """A bar on standard error, when that is a terminal; `total` is None where it is not known."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    with _bar(_amount(measure)) as bar:
        yield Progress(bar, bar.add_task(title, total=total, completed=done))


@contextmanager
def showing_runs(names: Sequence[str], steps: int, done: Sequence[int], visible: bool = True) -> Iterator[Board]:
    """A line per run: steps, loss, tokens per second, time left."""
    if not visible or not sys.stderr.isatty():
        yield Board()
        return
    from rich.progress import TextColumn

    told = [TextColumn("{task.fields[loss]}"), TextColumn("{task.fields[rate]}", justify="right")]
    with _bar([*_amount("steps"), *told]) as bar:
        tasks = [
            bar.add_task(name, total=steps, completed=already, loss="", rate="")
            for name, already in zip(names, done, strict=True)
        ]
        yield Board(bar, tasks)


def _bar(amount: Sequence[ProgressColumn]) -> Bar:
    # Only now: whoever does not look at a bar should not wait for its library.
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    # A title may hold brackets, which are no markup.
    title = TextColumn("{task.description}", markup=False)
    # Runs that take turns are seldom heard of: the rate that tells the time left looks back far enough.
    columns = (title, BarColumn(), *amount, TimeRemainingColumn())
    return Bar(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=300)


def _amount(measure: Measure) -> list[ProgressColumn]:
    from rich.progress import DownloadColumn, MofNCompleteColumn, TaskProgressColumn, TransferSpeedColumn

    if measure == "bytes":
        return [DownloadColumn(), TransferSpeedColumn()]
    return [MofNCompleteColumn()] if measure == "steps" else [TaskProgressColumn()]
