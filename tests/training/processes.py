"""Training in processes of its own, as users start them and as accidents end them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

GIVE_UP_SECONDS = 120
"""Far more than anything here takes; reached only if a process hangs."""


def command(config: Path, folder: Path, *options: str) -> list[str]:
    """What a user types, with this interpreter."""
    return [sys.executable, "-m", "lockstep.cli", "train", str(config), "--output-dir", str(folder), *options]


def start(
    config: Path, folder: Path, env: Mapping[str, str] | None = None, before: Callable[[], None] | None = None
) -> subprocess.Popen[str]:
    """A training process that runs on its own; `before` is called inside it first."""
    return subprocess.Popen(
        command(config, folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        preexec_fn=before,
    )


def run(config: Path, folder: Path, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """Train in a process of its own until that ends."""
    process = start(config, folder, before=before)
    stdout, stderr = process.communicate(timeout=GIVE_UP_SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> bool:
    """Whether something came true before the process ended."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not condition():
        if process.poll() is not None:
            return condition()
        assert time.monotonic() < deadline, "the process neither ended nor did what was waited for"
        time.sleep(0.001)
    return True


def only_line(stderr: str) -> str:
    """What was said on standard error, which must be exactly one line."""
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    return lines[0]
