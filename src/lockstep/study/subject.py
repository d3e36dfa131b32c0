"""A finished run, and keeping what is found out about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep.config.evaluate import EvaluateSpec
from lockstep.config.measurements import MeasurementsSpec
from lockstep.config.run import RunSpec
from lockstep.data.prepare import Prepared
from lockstep.durable import whole_file
from lockstep.evaluation.language import HeldOut
from lockstep.models.language_model import LanguageModel
from lockstep.training.checkpoint import WEIGHTS, load, resolve_checkpoint
from lockstep.training.provenance import provenance

Found = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A finished run, its newest model loaded when it is first asked for."""

    run: RunSpec
    folder: Path
    prepared: Prepared
    device: torch.device
    spec: MeasurementsSpec
    evaluate: EvaluateSpec

    @property
    def length(self) -> int:
        return self.run.data.max_sequence_length

    def model(self) -> LanguageModel:
        return load(self.folder).to(self.device)

    def held_out(self, length: int | None = None, sequences: int | None = None) -> HeldOut:
        size = self.run.evaluation.batch_size or self.run.data.batch_size
        return HeldOut(self.prepared, "test", length or self.length, size, sequences or self.spec.sequences)

    def first_tokens(self, count: int) -> torch.Tensor:
        """Of the test split, which is read again from its start where it is shorter."""
        tokens = np.resize(self.prepared.tokens("test")[:count], count).astype(np.int64)
        return torch.from_numpy(tokens)[None].to(self.device)


Finder = Callable[[Subject, LanguageModel], Found | None]


def keep(
    folder: Path,
    name: str,
    asked: Mapping[str, Any],
    subject: Subject,
    find: Finder,
) -> None:
    """Write what `find` finds of the folder's newest model, unless that has been done."""
    checkpoint, place = resolve_checkpoint(folder), folder / name
    about = {
        "checkpoint": checkpoint.label,
        "weights": checkpoint.metadata["files"][WEIGHTS],
        "asked": dict(asked),
        **provenance(subject.device),
    }
    if place.exists():
        known = json.loads(place.read_text(encoding="utf-8"))
        if all(known.get(key) == about[key] for key in ("weights", "asked")):
            return
    here = replace(subject, folder=folder)
    found = find(here, here.model())
    place.parent.mkdir(exist_ok=True)
    whole_file(place, json.dumps({**about, "found": found}) + "\n")
