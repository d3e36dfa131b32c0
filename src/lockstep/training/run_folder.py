"""The run folder: the only thing that is passed on from training to everything after it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from lockstep.config.files import dump_yaml, read_yaml
from lockstep.data.prepared import TOKENIZER
from lockstep.data.tokenizers import Tokenizer, load_tokenizer
from lockstep.durable import whole_file, whole_folder
from lockstep.errors import UserError
from lockstep.training.checkpoint import checkpoint_steps

MAY_CHANGE = (
    "evaluation.batch_size",
    "logging",
    "training.backend",
    "training.compile",
    "training.device",
    "training.distribution",
    "training.keep_last",
    "training.output_dir",
    "training.resume_from_checkpoint",
    "training.save_interval",
)
"""What may differ between the command that started a run and the one that goes on with it."""
MICRO_BATCHES = ("data.batch_size", "training.gradient_accumulation_steps")
"""Sequences per step, as a product."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder; a second process is refused. The lock ends with the process, however that ends."""
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = held.enter_context((folder / ".lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder}: another process is training here") from None
        except OSError as error:
            raise UserError(f"{folder}: cannot be used as a run folder: {error.strerror}") from None
        yield


def store_config(folder: Path, resolved: Mapping[str, Any]) -> None:
    """Write config.yaml, or check that the one already there describes the same run."""
    # A start that left no checkpoint binds nobody: its mistake can be mended in place.
    if checkpoint_steps(folder) and (folder / "config.yaml").exists():
        check_config(folder, resolved)
    else:
        whole_file(folder / "config.yaml", dump_yaml(resolved))


def check_config(folder: Path, resolved: Mapping[str, Any]) -> None:
    """Refuse to go on with a run by other settings than it was begun with."""
    stored = flatten(read_yaml(folder / "config.yaml"))
    asked = flatten(json.loads(json.dumps(resolved)))
    # Another split of the same step into micro-batches is the same run, as after running out of memory.
    free = (*MAY_CHANGE, *MICRO_BATCHES) if _step_size(stored) == _step_size(asked) else MAY_CHANGE
    for key in sorted(stored.keys() | asked.keys()):
        if stored.get(key) != asked.get(key) and not any(f"{key}.".startswith(f"{name}.") for name in free):
            raise UserError(
                f"{folder} holds a run with {key} = {stored.get(key)}, but {asked.get(key)} is asked for;"
                " use another --output-dir, or the old value"
            )


def store_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Keep the tokenizer with the run, so that its text can be read without its corpus."""
    place = folder / TOKENIZER
    if place.is_dir() and (checkpoint_steps(folder) or load_tokenizer(place).fingerprint == tokenizer.fingerprint):
        return
    with whole_folder(place, existing="replace") as aside:
        tokenizer.save(aside)


def _step_size(flat: Mapping[str, Any]) -> int:
    return math.prod(int(flat[key]) for key in MICRO_BATCHES)


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
    """Remove what a process that was killed while writing, replacing or deleting left behind."""
    for pattern in (".*.partial", ".checkpoint-*.deleted", ".checkpoint-*.damaged"):
        for left_over in folder.glob(pattern):
            if left_over.is_dir():
                shutil.rmtree(left_over, ignore_errors=True)
            else:
                left_over.unlink(missing_ok=True)


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
        if not self.path.exists():
            return
        records = read_log(self.path)
        kept = [record for record in records if record["step"] <= step]
        text = "".join(json.dumps(record) + "\n" for record in kept)
        if len(kept) < len(records) or len(text) != self.path.stat().st_size:
            whole_file(self.path, text)

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
    """The records of a log; a crash may have cut its last line short, but any other damage is refused."""
    *lines, _ = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise ValueError("not a record of a step")
            records.append(record)
        except ValueError:
            if number < len(lines):
                raise UserError(f"{path}: line {number} is damaged; restore the file, or delete that line") from None
    return records
