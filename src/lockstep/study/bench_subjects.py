"""What is benchmarked: architectures as they are built, and models that were trained."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lockstep.config.files import load_run
from lockstep.config.spec import nearest
from lockstep.data.prepare import Prepared
from lockstep.errors import UserError
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import architectures, specify
from lockstep.models.spec import ModelSpec
from lockstep.study.evaluate import open_same_corpus
from lockstep.study.place import StudyPlace
from lockstep.training.checkpoint import Checkpoint, checkpoint_steps, load, resolve_checkpoint
from lockstep.training.context import check_same_code, check_size

VOCABULARY = 258
"""Of an untrained model: bytes, as the default tokenizer has them."""


@dataclass(frozen=True)
class Benched:
    """One model, built when it is asked for."""

    label: str
    where: str
    """The architecture's name, or the folder."""
    spec: ModelSpec
    checkpoint: Checkpoint | None = None
    """None where it is untrained."""
    prepared: Prepared | None = None
    """The corpus of its training."""
    unscored: str | None = "it is untrained"
    """Why it has no perplexity."""

    def model(self, device: torch.device) -> LanguageModel:
        """With the weights of its checkpoint, or with the same random ones every time."""
        if self.checkpoint is not None:
            return load(self.checkpoint.folder).to(device)
        torch.manual_seed(0)
        return self.spec.build().to(device)


def find_benched(names: Sequence[str], sizes: Mapping[str, int], longest: int) -> list[Benched]:
    """Everything that is named; sizes, and positions for `longest` tokens, are those of untrained models.

    Whoever shares a label with another is called by where it comes from.
    """
    found = [one for name in names for one in _named(name, {**sizes, "max_length": longest})]
    shared = Counter(one.label for one in found)
    found = [replace(one, label=one.where) if shared[one.label] > 1 else one for one in found]
    for label, count in Counter(one.label for one in found).items():
        if count > 1:
            raise UserError(f"{label} is named twice")
    return found


def _named(name: str, fields: Mapping[str, int]) -> Iterator[Benched]:
    """An architecture, a run, or a study's contestants; a folder that is called like an architecture is ./NAME."""
    folder = Path(name)
    if name in architectures() or ".py:" in name:
        spec = specify(name, {"vocab_size": VOCABULARY, **fields}, "bench")
        check_size(spec)
        yield Benched(spec.architecture, name, spec)
    elif StudyPlace(folder).is_study:
        yield from _contestants(StudyPlace(folder))
    elif folder.is_dir():
        yield _trained(folder)
    else:
        close = nearest(name, architectures())
        raise UserError(f"{name}: neither an architecture nor the folder of a run or a study{close}")


def _contestants(place: StudyPlace) -> Iterator[Benched]:
    """The first repeat of each that has a checkpoint."""
    study = place.read()
    folders = {name: place.run(name, study.seeds.pairs[0][0]) for name in study.contestants}
    there = {name: folder for name, folder in folders.items() if checkpoint_steps(folder)}
    if not there:
        raise UserError(f"{place.folder}: no contestant has a checkpoint yet; run `lockstep compare` first")
    for name in folders.keys() - there.keys():
        warnings.warn(f"{place.folder}: {name} has no checkpoint yet and is left out", stacklevel=2)
    for name, folder in there.items():
        yield _trained(folder, name)


def _trained(folder: Path, label: str | None = None) -> Benched:
    """The newest sound checkpoint; without its corpus it can be timed but not scored."""
    checkpoint = resolve_checkpoint(folder)
    run = load_run(checkpoint.folder.parent / "config.yaml")
    check_same_code(checkpoint, run.model.architecture)
    spec = specify(run.model.architecture, run.model.fields())
    found = Benched(label or run.experiment_name, str(folder), spec, checkpoint)
    if not spec.causal:
        return replace(found, unscored="a masked model has no next-token perplexity")
    try:
        return replace(found, prepared=open_same_corpus(run, checkpoint), unscored=None)
    except UserError as error:
        return replace(found, unscored=str(error))
