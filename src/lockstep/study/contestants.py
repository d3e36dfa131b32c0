"""Who competes, at which size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.config.match import MatchSpec
from lockstep.config.model import ModelSection
from lockstep.config.run import RunSpec
from lockstep.config.study import StudySpec
from lockstep.data.prepare import Prepared, prepare
from lockstep.errors import UserError
from lockstep.models.registry import absolute, find, specify
from lockstep.models.spec import ModelSpec
from lockstep.study.match import match
from lockstep.tables import in_short
from lockstep.training.context import check_against_data, check_size
from lockstep.training.objective import make_objective


@dataclass(frozen=True)
class Contestant:
    """One contestant, its size solved for."""

    study: StudySpec
    name: str
    spec: ModelSpec
    prepared: Prepared

    def run(self, seeds: tuple[int, int], changes: Mapping[str, Any] | None = None) -> RunSpec:
        """With (data, init) seeds; `changes` are dotted keys, such as what was tuned."""
        run = self.study.run_of(self.name, seeds, changes)
        section = self.study.contestants[self.name]
        fields = {"architecture": absolute(section.architecture), **self.spec.model_dump(mode="json")}
        return run.model_copy(update={"model": ModelSection.model_validate(fields)})


def group_of(study: StudySpec, name: str, causal: bool) -> str:
    """Only contestants of one track and one size are compared with each other."""
    track, wanted = "causal" if causal else "masked", study.wanted_of(name)
    return track if wanted is None else f"{track}, {in_short(wanted.target)} {wanted.quantity}"


def contestants(study: StudySpec) -> tuple[Contestant, ...]:
    """All of a study, checked as their runs would be; the corpus is read first, for the vocabulary."""
    return tuple(_contestant(study, name) for name in study.contestants)


def _contestant(study: StudySpec, name: str) -> Contestant:
    """Whatever is wrong is said of this contestant."""
    run, source = study.run_of(name), f"contestants.{name}"
    try:
        find(run.model.architecture)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    prepared = prepare(run.data, run.tokenizer)
    spec = solve(run, study.wanted_of(name), prepared.tokenizer.vocab_size, source)
    try:
        make_objective(run, spec.causal, prepared.tokenizer)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return Contestant(study, name, spec, prepared)


def solve(run: RunSpec, wanted: MatchSpec | None, vocab_size: int, source: str) -> ModelSpec:
    """The model as stated, or as large as is wanted."""
    length = run.data.max_sequence_length
    fields = {"vocab_size": vocab_size, "max_length": length, **run.model.fields()}
    if wanted is None:
        spec = specify(run.model.architecture, fields, source)
    else:
        spec = match(run.model.architecture, fields, wanted, length, source)
    try:
        check_size(spec)
        return check_against_data(spec, vocab_size, length)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
