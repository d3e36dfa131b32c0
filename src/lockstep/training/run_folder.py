"""The run folder: the only thing that is passed on from training to everything after it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from lockstep.config.files import dump_yaml, read_yaml
from lockstep.errors import UserError
from lockstep.training.checkpoint import checkpoint_steps
from lockstep.training.durable import write_whole

MAY_CHANGE = (
    "logging",
    "training.compile",
    "training.device",
    "training.distribution",
    "training.keep_last",
    "training.output_dir",
    "training.resume_from_checkpoint",
    "training.save_interval",
)
"""What may differ between the command that started a run and the one that goes on with it."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder; a second process is refused. The lock ends with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{folder}: another process is training here") from None
        yield


def store_config(folder: Path, resolved: Mapping[str, Any]) -> None:
    """Write config.yaml, or check that the one already there describes the same run."""
    path = folder / "config.yaml"
    if not path.exists():
        write_whole(path, dump_yaml(resolved))
        return
    stored = flatten(read_yaml(path))
    asked = flatten(json.loads(json.dumps(resolved)))
    for key in sorted(stored.keys() | asked.keys()):
        if stored.get(key) != asked.get(key) and not any(f"{key}.".startswith(f"{name}.") for name in MAY_CHANGE):
            raise UserError(
                f"{folder} holds a run with {key} = {stored.get(key)}, but {asked.get(key)} is asked for;"
                " use another --output-dir, or the old value"
            )


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def sweep(folder: Path) -> None:
    """Remove what a process that was killed while writing or deleting a checkpoint left behind."""
    for left_over in (*folder.glob(".checkpoint-*.partial"), *folder.glob(".checkpoint-*.deleted")):
        shutil.rmtree(left_over, ignore_errors=True)


def prune(folder: Path, scheduled: Sequence[int], keep_last: int, step: int) -> None:
    """Delete the oldest unscheduled checkpoints up to `step`; scheduled ones stay for good.

    What lies beyond `step` was damaged, or the run would have gone on from there: it is not one of those kept.
    """
    unscheduled = [one for one in checkpoint_steps(folder) if one not in set(scheduled) and one <= step]
    for old in unscheduled[:-keep_last]:
        # Renamed first: a deletion that is cut short must not look like a damaged checkpoint.
        doomed = folder / f".checkpoint-{old}.deleted"
        (folder / f"checkpoint-{old}").rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


class Log:
    """An append-only file of JSON lines, each with the step it belongs to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def rewind(self, step: int) -> None:
        """Forget what was written after `step`, and a last line that was cut short."""
        if self.path.exists():
            kept = [json.dumps(record) + "\n" for record in read_log(self.path) if record["step"] <= step]
            write_whole(self.path, "".join(kept))

    def write(self, record: Mapping[str, Any]) -> None:
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(json.dumps(record) + "\n")

    def flush(self, durably: bool = False) -> None:
        """Hand lines to the system; durably waits until they are on the disk."""
        if self._file is not None:
            self._file.flush()
            if durably:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_log(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log, up to the first that is not one: a crash may leave its last lines torn."""
    records = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records
