"""A bar where somebody looks, and not a single byte elsewhere."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest

from lockstep.progress import Measure, showing, showing_runs


class Terminal(io.StringIO):
    """A standard error that says somebody looks at it."""

    def isatty(self) -> bool:
        return True


def somebody_looks(patch: pytest.MonkeyPatch) -> Terminal:
    """Called inside a test: pytest puts its own standard error in place after a test's fixtures."""
    screen = Terminal()
    patch.setattr(sys, "stderr", screen)
    patch.setenv("TERM", "xterm")
    patch.setenv("COLUMNS", "160")
    return screen


@pytest.mark.parametrize(
    ("measure", "options", "shown"),
    [
        ("bytes", {"total": 3_000_000, "done": 1_000_000}, ["1.5/3.0 MB"]),
        ("bytes", {"total": None}, ["500.0/? kB"]),
        ("share", {}, ["100%"]),
    ],
    ids=str,
)
def test_a_bar_says_how_far_it_is(
    measure: Measure, options: dict[str, Any], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = somebody_looks(monkeypatch)
    with showing("[work] {of} mine", measure, **options) as progress:
        if measure == "bytes":
            progress.add(500_000)
        else:
            progress.reach(0.5)
            progress.reach(1.0)
    screen = terminal.getvalue()
    assert "[work] {of} mine" in screen
    assert any(one in screen for one in shown), screen
    assert "%/s" not in screen


def test_runs_come_with_their_loss_and_their_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = somebody_looks(monkeypatch)
    with showing_runs(["[one]", "two"], 12, [4, 0]) as board:
        for step in range(5, 9):
            board.reach(0, step, 2.5, 12_345.6)
        board.reach(1, 3, None, None)
    screen = terminal.getvalue()
    assert all(one in screen for one in ("[one]", "two", " 8/12", " 3/12", "loss 2.5000", "12,346 tokens/s")), screen


def test_who_is_not_to_be_seen_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = somebody_looks(monkeypatch)
    with showing_runs(["run"], 12, [0], visible=False) as board:
        board.reach(0, 5, 1.0, 10.0)
    assert terminal.getvalue() == ""


def test_elsewhere_there_is_silence_and_no_library() -> None:
    """Another process, because this one may have imported rich for another reason."""
    program = (
        "import sys\nfrom lockstep.progress import showing\n"
        "with showing('run', 'bytes', 5) as progress:\n    progress.add(5)\n    progress.reach(5)\n"
        "sys.exit('rich' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
