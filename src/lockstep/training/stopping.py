"""How a run ends before its last step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class RunStopped(Exception):
    """A run that ended early; the message is one line, `status` what the process should exit with."""

    status = 1


class Diverged(RunStopped):
    """The loss is no longer a number."""


class Interrupted(RunStopped):
    """Asked to stop by a signal, after saving."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.status = 128 + number


class StopRequest:
    """Remembers the signal that asked the run to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        # A second signal is not waited for: the usual handler takes over.
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def listening(active: bool) -> Iterator[StopRequest]:
    """While active, Ctrl-C and SIGTERM ask politely: the current step is finished and saved first."""
    request = StopRequest()
    if not active:
        yield request
        return
    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
