"""Checkpoints: `checkpoint-<step>/` with weights, training state and metadata, whole or absent.

model.safetensors     weights, no pickle
training_state.pt     optimizers, scaler and ledger, read with weights_only
metadata.json         what it is and where it comes from, with the sha256 of the other two and of itself
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lockstep.config.files import load_run
from lockstep.durable import sha256, whole_folder
from lockstep.errors import UserError
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import specify

WEIGHTS, TRAINING_STATE, METADATA = "model.safetensors", "training_state.pt", "metadata.json"


class DamagedCheckpoint(Exception):
    """A checkpoint that is not what its writer wrote; the message says in which way."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose files have been verified."""

    folder: Path
    metadata: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.metadata["global_step"])

    @property
    def label(self) -> str:
        """Its name within the run: a cooled point's also says of which branch it is."""
        branch = self.folder.parent.name if self.metadata["cooling"] else ""
        return f"{branch}/{self.folder.name}".lstrip("/")

    @property
    def digest(self) -> str:
        return str(self.metadata["digest"])

    def weights(self) -> dict[str, Tensor]:
        return load_file(self.folder / WEIGHTS)

    def training_state(self) -> dict[str, Any]:
        state: dict[str, Any] = torch.load(self.folder / TRAINING_STATE, map_location="cpu", weights_only=True)
        return state


def save_checkpoint(
    folder: Path, weights: Mapping[str, Tensor], training_state: Mapping[str, Any], metadata: Mapping[str, Any]
) -> Checkpoint:
    """Write `checkpoint-<step>` into a run folder; it appears when all of it is on the disk."""
    final = folder / f"checkpoint-{metadata['global_step']}"
    with whole_folder(final, existing="replace") as aside:
        with _disk_errors_in_sight():
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, aside / WEIGHTS)
        with _disk_errors_in_sight(), (aside / TRAINING_STATE).open("wb") as file:
            torch.save(dict(training_state), file)
        files = {name: sha256(aside / name) for name in (WEIGHTS, TRAINING_STATE)}
        complete = {**metadata, "files": files}
        complete["digest"] = metadata_digest(complete)
        (aside / METADATA).write_text(json.dumps(complete, indent=2) + "\n", encoding="utf-8")
    return Checkpoint(final, complete)


@contextlib.contextmanager
def _disk_errors_in_sight() -> Iterator[None]:
    """Both writers hide what the system said, in a text or in a chain of errors; here it comes out as OSError."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        told = re.search(r"os error (\d+)", str(error))
        if told:
            raise OSError(int(told[1]), os.strerror(int(told[1]))) from error
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        raise


def metadata_digest(metadata: Mapping[str, Any]) -> str:
    """The sha256 of everything in the metadata but the digest itself."""
    rest = {key: value for key, value in metadata.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def open_checkpoint(folder: Path) -> Checkpoint:
    """A checkpoint with every byte checked."""
    try:
        metadata = json.loads((folder / METADATA).read_text(encoding="utf-8"))
        expected = metadata["files"]
        if metadata["digest"] != metadata_digest(metadata):
            raise DamagedCheckpoint(f"{METADATA} does not match its own digest")
        if folder.name != f"checkpoint-{metadata['global_step']}":
            raise DamagedCheckpoint(f"it is of step {metadata['global_step']}, whatever its name says")
        for name in (WEIGHTS, TRAINING_STATE):
            if sha256(folder / name) != expected[name]:
                raise DamagedCheckpoint(f"{name} does not match its sha256 in {METADATA}")
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{Path(error.filename).name} is missing") from None
    except OSError as error:
        raise DamagedCheckpoint(f"{Path(error.filename or folder).name} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{METADATA} cannot be read ({type(error).__name__})") from None
    return Checkpoint(folder, metadata)


def checkpoint_steps(run_folder: Path) -> list[int]:
    """The steps of all checkpoint folders, in ascending order; none is opened."""
    if not run_folder.is_dir():
        return []
    found = (re.fullmatch(r"checkpoint-(\d+)", entry.name) for entry in run_folder.iterdir() if entry.is_dir())
    return sorted(int(match[1]) for match in found if match)


def checkpoints_newest_first(run_folder: Path) -> Iterator[Checkpoint]:
    """Every sound checkpoint; a damaged one is passed over with a warning."""
    for step in reversed(checkpoint_steps(run_folder)):
        folder = run_folder / f"checkpoint-{step}"
        try:
            yield open_checkpoint(folder)
        except DamagedCheckpoint as damage:
            warnings.warn(f"{folder}: damaged, using an earlier checkpoint: {damage}", stacklevel=2)


def newest_checkpoint(run_folder: Path) -> Checkpoint | None:
    """The newest sound checkpoint of a run folder."""
    return next(checkpoints_newest_first(run_folder), None)


def resolve_checkpoint(path: Path, name: str | None = None) -> Checkpoint:
    """The checkpoint that `path` is, or of the run folder that it is: by name or step, else the newest sound one."""
    name = name or None
    if name is None and (path / METADATA).exists():
        path, name = path.parent, path.name
    if name is None:
        newest = newest_checkpoint(path)
        if newest is None:
            raise UserError(f"{path}: {_why_none(path)}")
        return newest
    folder = path / (f"checkpoint-{name}" if name.isdigit() else name)
    if (folder / "config.yaml").exists():
        return resolve_checkpoint(folder)  # a cooled point is a run folder of its own
    if not folder.is_dir() or not folder.name.startswith("checkpoint-"):
        raise UserError(f"{folder}: {_why_missing(path, folder.name)}")
    try:
        return open_checkpoint(folder)
    except DamagedCheckpoint as damage:
        raise UserError(f"{folder}: damaged checkpoint: {damage}") from None


def _why_none(path: Path) -> str:
    """A folder may hold runs instead of being one, as a study's does."""
    runs = sorted(config.parent for config in path.glob("runs/*/config.yaml"))
    return f"holds runs; name one of them, such as {runs[0]}" if runs else "no run folder with checkpoints; train first"


def _why_missing(run_folder: Path, name: str) -> str:
    """A checkpoint that can never be is told apart from one that is not there yet."""
    newest, number = newest_checkpoint(run_folder), re.fullmatch(r"checkpoint-(\d+)", name)
    if newest is None:
        return "no such checkpoint, and none other; train first"
    last = newest.metadata["planned_steps"]
    if number and int(number[1]) > last:
        return f"step {int(number[1])} lies beyond the last step {last} of this run"
    return f"no such checkpoint; there are steps {', '.join(map(str, checkpoint_steps(run_folder)))}"


def load(path: str | Path) -> LanguageModel:
    """The model of a checkpoint, or of the newest checkpoint of a run folder, ready for evaluation."""
    checkpoint = resolve_checkpoint(Path(path))
    run = load_run(checkpoint.folder.parent / "config.yaml")
    model = specify(run.model.architecture, run.model.fields()).unfilled()
    load_weights(model, checkpoint.weights())
    return model.eval()


def load_weights(model: LanguageModel, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model; the names must be exactly those of its parameters and buffers."""
    own = model_tensors(model)
    if own.keys() != weights.keys():
        missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
        raise UserError(f"the checkpoint's weights are of another model: missing {missing}, unknown {unknown}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, each once: a tied table is stored under its first name only."""
    persistent = model.state_dict(keep_vars=True)
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    tensors.update((name, buffer) for name, buffer in model.named_buffers() if name in persistent)
    return tensors
