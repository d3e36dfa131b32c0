"""Progress with rate and time left on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn, Task, TaskID
    from rich.text import Text

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

    def reach(self, done: float, loss: float | None = None) -> None:
        """So much is done in all."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, loss="" if loss is None else f"loss {loss:.4f}")


@contextmanager
def showing(
    title: str,
    measure: Measure,
    total: float | None = 1,
    done: int = 0,
    tokens_per_step: int = 1,
    visible: bool = True,
) -> Iterator[Progress]:
    """A bar on standard error, when that is a terminal; `total` is None where it is not known."""
    if not visible or not sys.stderr.isatty():
        yield Progress()
        return
    # Only now: whoever does not look at a bar should not wait for its library.
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(*_columns(measure, tokens_per_step), console=Console(stderr=True), transient=True) as bar:
        yield Progress(bar, bar.add_task(title, total=total, completed=done, loss=""))


def _columns(measure: Measure, tokens_per_step: int) -> list[ProgressColumn]:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    # A title may hold brackets, which are no markup.
    title, loss = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[loss]}")
    amount: dict[Measure, list[ProgressColumn]] = {
        "bytes": [DownloadColumn(), TransferSpeedColumn()],
        "steps": [MofNCompleteColumn(), _token_rate(tokens_per_step), loss],
        "share": [TaskProgressColumn()],
    }
    return [title, BarColumn(), *amount[measure], TimeRemainingColumn()]


def _token_rate(tokens_per_step: int) -> ProgressColumn:
    from rich.progress import ProgressColumn
    from rich.text import Text

    class TokenRate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed * tokens_per_step:,.0f} tokens/s")

    return TokenRate()
