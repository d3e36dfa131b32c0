"""Progress on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text


class Rate(ProgressColumn):
    """Units per second."""

    def __init__(self, unit: str, scale: float) -> None:
        super().__init__()
        self.unit, self.scale = unit, scale

    def render(self, task: Task) -> Text:
        speed = task.speed
        return Text("" if speed is None else f"{speed * self.scale:,.0f} {self.unit}/s")


class Progress:
    """Told how far the work is; shows it if there is somebody to see it."""

    def __init__(self, bar: Bar | None, total: float) -> None:
        self.bar = bar
        self.task = None if bar is None else bar.add_task("", total=total, loss="")

    def advance(self, done: float, loss: float | None = None) -> None:
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, loss="" if loss is None else f"loss {loss:.4f}")


@contextmanager
def showing(title: str, total: float, unit: str, scale: float = 1.0, visible: bool = True) -> Iterator[Progress]:
    """A bar with rate and time left on standard error, when that is a terminal."""
    if not visible or not sys.stderr.isatty():
        yield Progress(None, total)
        return
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(unit, scale),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Progress(bar, total)
