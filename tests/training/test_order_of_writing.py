"""The order in which a checkpoint reaches the disk: a power cut between any two of these leaves a run that goes on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lockstep.training.checkpoint import METADATA, TRAINING_STATE, WEIGHTS
from lockstep.training.run import train
from lockstep.training.run_folder import read_log
from tests.training.tiny_runs import tiny_run

FILES = (WEIGHTS, TRAINING_STATE, METADATA)


@dataclass(frozen=True)
class Event:
    """Something reached the disk (`node` is known) or took its name (`name` is known)."""

    node: tuple[int, int] | None = None
    name: Path | None = None
    logged: int = 0
    """The last step in metrics.jsonl at that moment."""


@dataclass
class Witness:
    """The events of a run, in their order."""

    folder: Path
    events: list[Event] = field(default_factory=list)

    def logged(self) -> int:
        path = self.folder / "metrics.jsonl"
        lines = read_log(path) if path.exists() else []
        return int(lines[-1]["step"]) if lines else 0

    def naming(self, name: str) -> int:
        """When a folder took its name."""
        (place,) = [number for number, event in enumerate(self.events) if event.name == self.folder / name]
        return place

    def synced(self, path: Path) -> list[int]:
        """When a file or folder, which may have had another name by then, reached the disk."""
        return [number for number, event in enumerate(self.events) if event.node == node_of(os.stat(path))]


def node_of(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


@contextlib.contextmanager
def watching(folder: Path) -> Iterator[Witness]:
    """Inside, every fsync and rename is done as ever, and remembered."""
    witness, fsync, rename = Witness(folder), os.fsync, Path.rename

    def watched_fsync(descriptor: int) -> None:
        fsync(descriptor)
        witness.events.append(Event(node=node_of(os.fstat(descriptor)), logged=witness.logged()))

    def watched_rename(path: Path, target: Path) -> Any:
        renamed = rename(path, target)
        witness.events.append(Event(name=Path(target), logged=witness.logged()))
        return renamed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", watched_fsync)
        patch.setattr(Path, "rename", watched_rename)
        yield witness


@pytest.fixture(scope="module")
def witness(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Witness:
    """A whole run with checkpoints at steps 4, 8 and 12, all of them kept."""
    folder = tmp_path_factory.mktemp("order")
    with watching(folder) as seen:
        train(tiny_run(tiny_corpus, training={"keep_last": 9}), folder)
    return seen


@pytest.mark.parametrize("step", [4, 8, 12])
def test_the_log_comes_before_the_checkpoint(witness: Witness, step: int) -> None:
    named = witness.naming(f"checkpoint-{step}")
    durable = [
        witness.events[number].logged for number in witness.synced(witness.folder / "metrics.jsonl") if number < named
    ]
    assert durable, "the log was never made durable"
    assert durable[-1] == step == witness.events[named].logged


@pytest.mark.parametrize("step", [4, 8, 12])
def test_every_file_comes_before_the_name(witness: Witness, step: int) -> None:
    checkpoint = witness.folder / f"checkpoint-{step}"
    named = witness.naming(checkpoint.name)
    assert sorted(path.name for path in checkpoint.iterdir()) == sorted(FILES)
    contents = [witness.synced(checkpoint / name) for name in FILES]
    assert all(len(moments) == 1 and moments[0] < named for moments in contents)
    (folder,) = witness.synced(checkpoint)
    assert max(moments[0] for moments in contents) < folder < named


@pytest.mark.parametrize("step", [4, 8, 12])
def test_the_run_folder_comes_after_the_name(witness: Witness, step: int) -> None:
    named = witness.naming(f"checkpoint-{step}")
    assert named + 1 in witness.synced(witness.folder)
