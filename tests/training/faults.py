"""Accidents at chosen places: a real function that fails once, at its n-th call."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.config.run import RunSpec
from lockstep.data.prepare import prepare
from lockstep.training.loop import Trainer
from lockstep.training.run import train
from lockstep.training.stopping import Interrupted


class Crash(Exception):
    """Something nobody foresaw."""


PLACES: dict[str, tuple[Any, str]] = {
    "a file reaches the disk": (os, "fsync"),
    "the training state is written": (torch, "save"),
    "a folder gets its name": (Path, "rename"),
    "a step is taken": (Trainer, "step"),
    "a step has been taken": (Trainer, "after_step"),
}


@contextlib.contextmanager
def crashing(place: str, call: int) -> Iterator[list[int]]:
    """Inside, the n-th call (from 1) at `place` raises Crash instead of doing its work; yields the count of calls."""
    owner, name = PLACES[place]
    real, calls = getattr(owner, name), [0]

    def failing(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise Crash(f"{place}: call {call}")
        return real(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, failing)
        yield calls


def crash(run: RunSpec, folder: Path, place: str, call: int) -> None:
    """Train until the crash, which must come."""
    with crashing(place, call), pytest.raises(Crash):
        train(run, folder)


def count_calls(run: RunSpec, folder: Path, place: str) -> int:
    """How often a whole run passes `place`, on a corpus that was prepared before."""
    prepare(run.data, run.tokenizer)
    with crashing(place, -1) as calls:
        train(run, folder)
    return calls[0]


def interrupt(run: RunSpec, folder: Path, call: int, number: int = signal.SIGTERM) -> int:
    """Train with a signal sent to this very process during the n-th step; the exit status that follows."""
    real, calls = Trainer.step, [0]

    def signalled(trainer: Trainer) -> None:
        calls[0] += 1
        if calls[0] == call:
            os.kill(os.getpid(), number)
        real(trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", signalled)
        with pytest.raises(Interrupted) as stopped:
            train(run, folder)
    return stopped.value.status
