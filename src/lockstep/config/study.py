"""A study: what is shared, once, and then the contestants.

study_name: first
data: {training_corpus: pystdlib, batch_size: 8, max_sequence_length: 256}
training: {train_steps: 500}
scale: tiny
contestants:
  transformer++: {}
  short-memory: {architecture: titans-mac, segment: 64}
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from lockstep.config.data import DataSpec
from lockstep.config.evaluation import EvaluationSpec
from lockstep.config.logging import LoggingSpec
from lockstep.config.match import SCALES, MatchSpec, Scale
from lockstep.config.model import ModelSection
from lockstep.config.run import RunSpec
from lockstep.config.spec import Name, Spec, validate
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.config.training import TrainingSpec


def named_after_themselves(contestants: Any) -> Any:
    """A contestant that names no architecture is called by it."""
    if not isinstance(contestants, dict):
        raise ValueError("expected names, each with a model behind it, such as `transformer++: {}`")
    named = {}
    for name, fields in contestants.items():
        fields = {} if fields is None else fields
        named[name] = {"architecture": name, **fields} if isinstance(fields, dict) else fields
    return named


def none_is_nothing(match: Any) -> Any:
    """`match: none` says that sizes are as stated, as no `match` does."""
    return None if match == "none" else match


def is_no_place(name: str) -> str:
    """Neither this folder nor the one above."""
    if name in (".", ".."):
        raise ValueError("not a name for a folder")
    return name


FolderName = Annotated[Name, Field(max_length=200, pattern=r"^[^/\\]+$"), AfterValidator(is_no_place)]
"""Runs lie in folders that are named so."""
Contestants = Annotated[
    dict[FolderName, ModelSection], BeforeValidator(named_after_themselves), Field(min_length=1, max_length=100)
]


class StudySpec(Spec):
    """A study as its YAML states it."""

    study_name: FolderName
    data: DataSpec
    tokenizer: TokenizerSpec = TokenizerSpec()
    training: TrainingSpec = TrainingSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    logging: LoggingSpec = LoggingSpec()
    scale: Scale | None = None
    """A size that all contestants are given, by name."""
    match: Annotated[MatchSpec | None, BeforeValidator(none_is_nothing)] = None
    """The same in numbers; `none` leaves sizes as each contestant states them."""
    contestants: Contestants
    """By name; each is a `model` section, whose architecture is the name unless it says otherwise."""

    @model_validator(mode="after")
    def _has_one_size(self) -> StudySpec:
        if self.scale is not None and self.match is not None:
            raise ValueError("scale and match both say how large contestants are; remove one")
        return self

    @property
    def wanted(self) -> MatchSpec | None:
        """What sizes are solved for; None where they are as stated."""
        if self.scale is not None:
            return SCALES[self.scale]
        return self.match

    def run_of(self, contestant: str) -> RunSpec:
        """The contestant's run, its model as stated."""
        shared = {name: getattr(self, name) for name in ("data", "tokenizer", "training", "evaluation", "logging")}
        fields = {"experiment_name": contestant, "model": self.contestants[contestant], **shared}
        return validate(RunSpec, fields, f"contestants.{contestant}")
