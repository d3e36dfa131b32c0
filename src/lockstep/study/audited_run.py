"""A run as an audit sees it: its configuration and what its checkpoints say of themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lockstep.config.files import read_yaml
from lockstep.errors import UserError
from lockstep.models.registry import find
from lockstep.training.checkpoint import DamagedCheckpoint, checkpoint_steps, open_checkpoint
from lockstep.training.metadata import config_hash
from lockstep.training.run_folder import flatten

CONFIG = "config.yaml"
TOTAL_TOKENS = "token_metrics.total_tokens_processed"

Facts = Mapping[str, Any]
"""Dotted keys and their values; a key that is absent reads as None, so that code versions can be compared."""
Track = Literal["causal", "masked"]


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """One run folder, read once."""

    name: str
    architecture: str
    track: Track
    folder: Path
    config: Facts
    """config.yaml with seeds and objective as they take effect."""
    config_hash: str
    checkpoints: Mapping[int, Facts]
    """The metadata of every sound checkpoint, in ascending order of steps."""
    damaged: Mapping[int, str]
    """What is wrong with the others."""

    @property
    def tokens(self) -> dict[int, int]:
        """Tokens processed at each sound checkpoint that counts them."""
        counts = {step: facts.get(TOTAL_TOKENS) for step, facts in self.checkpoints.items()}
        return {step: count for step, count in counts.items() if isinstance(count, int)}

    @property
    def newest(self) -> int | None:
        """The step of the newest sound checkpoint."""
        return max(self.checkpoints, default=None)

    def facts(self, step: int | None) -> Facts:
        """The metadata at `step`, or of the newest sound checkpoint; empty where there is none."""
        chosen = self.newest if step is None else step
        return {} if chosen is None else self.checkpoints.get(chosen, {})


def read_runs(paths: Sequence[Path]) -> tuple[AuditedRun, ...]:
    """Every run at `paths`, each once; a path is a run folder or a folder that holds run folders."""
    folders: dict[Path, Path] = {}
    for path in paths:
        for folder in run_folders_at(path):
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise UserError("nothing to audit; name run folders, or a folder that holds them")
    names = [real.name for real in folders]
    return tuple(
        read_run(folder, real.name if names.count(real.name) == 1 else str(folder)) for real, folder in folders.items()
    )


def run_folders_at(path: Path) -> list[Path]:
    """The run folders that a path stands for; the cooled points inside a run are not runs of their own."""
    if (path / CONFIG).is_file():
        return [path]
    try:
        inside = sorted(path.iterdir())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a run folder, or a folder that holds run folders") from None
    found = [one for one in inside if (one / CONFIG).is_file() and not re.fullmatch(r"\..*|cooled-\d+", one.name)]
    if not found:
        raise UserError(f"{path}: neither a run folder (with {CONFIG}) nor a folder that holds run folders")
    return found


def read_run(folder: Path, name: str) -> AuditedRun:
    """A run folder, with every byte of its checkpoints checked."""
    nested = read_yaml(folder / CONFIG)
    config = flatten(nested)
    checkpoints, damaged = read_checkpoints(folder)
    newest: Facts = checkpoints[max(checkpoints)] if checkpoints else {}
    architecture = str(config.get("model.architecture") or newest.get("model_config.architecture") or "unknown")
    objective = newest.get("training_config.objective") or config.get("training.objective") or default_of(architecture)
    return AuditedRun(
        name=name,
        architecture=architecture,
        track="masked" if objective == "masked_lm" else "causal",
        folder=folder,
        config=as_it_takes_effect(config, str(objective)),
        config_hash=config_hash(nested),
        checkpoints=checkpoints,
        damaged=damaged,
    )


def read_checkpoints(folder: Path) -> tuple[dict[int, Facts], dict[int, str]]:
    """The metadata of sound checkpoints, and what is wrong with the others."""
    sound: dict[int, Facts] = {}
    damaged: dict[int, str] = {}
    for step in checkpoint_steps(folder):
        place = folder / f"checkpoint-{step}"
        try:
            sound[step] = flatten(open_checkpoint(place).metadata)
        except DamagedCheckpoint as damage:
            # A run that goes on while it is audited deletes checkpoints that only served resuming.
            if place.is_dir():
                damaged[step] = str(damage)
    return sound, damaged


def default_of(architecture: str) -> str:
    """The objective that an architecture implies; one that is not known here counts as causal."""
    try:
        return "causal_lm" if find(architecture).causal else "masked_lm"
    except UserError:
        return "causal_lm"


def as_it_takes_effect(config: Facts, objective: str) -> Facts:
    """Null and the value it stands for are the same setting: say the value."""
    resolved = {**config, "training.objective": objective}
    for seed in ("init_seed", "data_seed"):
        if resolved.get(seed) is None:
            resolved[seed] = config.get("random_seed")
    return resolved
