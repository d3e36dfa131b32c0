"""A study: what is shared, once, and then the contestants.

study_name: first
data: {training_corpus: pystdlib, batch_size: 8, max_sequence_length: 256}
training: {train_steps: 500, schedule: wsd, cooled_at: [0.25, 0.5]}
seeds: 3
scale: tiny
contestants:
  transformer++: {}
  short-memory: {architecture: titans-mac, segment: 64}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from lockstep.config.contestant import ContestantSection
from lockstep.config.data import DataSpec
from lockstep.config.evaluate import EvaluateSpec
from lockstep.config.evaluation import EvaluationSpec
from lockstep.config.logging import LoggingSpec
from lockstep.config.match import SCALES, MatchSpec, Scale
from lockstep.config.measurements import MeasurementsSpec
from lockstep.config.run import RunSpec
from lockstep.config.seeds import Seeds, SeedsSpec
from lockstep.config.spec import Name, Spec, validate
from lockstep.config.tokenizer import TokenizerSpec
from lockstep.config.training import TrainingSpec
from lockstep.config.tuning import TuningSpec
from lockstep.errors import UserError

SHARED = ("data", "tokenizer", "training", "evaluation", "logging")
"""Sections that a study has in common with a run."""


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


def names_a_folder(name: str) -> str:
    """Neither this folder nor the one above, and with room for what is added to it."""
    if name in (".", ".."):
        raise ValueError("not a name for a folder")
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"expected at most {LONGEST_NAME} bytes")
    return name


LONGEST_NAME = 200
FolderName = Annotated[Name, Field(pattern=r"^[^/\\]+$"), AfterValidator(names_a_folder)]
"""Runs lie in folders that are named so."""
Contestants = Annotated[
    dict[FolderName, ContestantSection], BeforeValidator(named_after_themselves), Field(min_length=1, max_length=100)
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
    seeds: Seeds = SeedsSpec()
    """How many repeats, or their seeds; one repeat has no interval over seeds."""
    tuning: TuningSpec | None = None
    """What is tuned for each contestant before it competes."""
    varies: tuple[Name, ...] = ()
    """Settings, or sections of them, in which contestants may differ besides their models."""
    evaluate: EvaluateSpec = EvaluateSpec()
    """Tasks and texts that trained contestants are tested by: a list of names, or names with knobs."""
    measurements: MeasurementsSpec = MeasurementsSpec()
    baseline: str | None = None
    """Whom the others are compared with first; the first contestant by default."""
    side_by_side: bool | None = None
    """Whether contestants take turns within one process, or train one after another; by default as memory allows.
    It changes no result."""
    contestants: Contestants
    """By name; each is a `model` section, whose architecture is the name unless it says otherwise."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> StudySpec:
        if self.scale is not None and self.match is not None:
            raise ValueError("scale and match both say how large contestants are; remove one")
        if self.baseline is not None and self.baseline not in self.contestants:
            raise ValueError(f"baseline: {self.baseline} is none of the contestants {', '.join(self.contestants)}")
        self._tunes_what_it_trains()
        for name, section in self.contestants.items():
            if section.size is not None and self.wanted is None:
                raise ValueError(f"contestants.{name}.size: sizes are not matched; add `match` or `scale`")
            for key in section.settings:
                if not any(f"{key}.".startswith(f"{one}.") for one in self.varies):
                    raise ValueError(f"contestants.{name}.settings: {key} is not declared; add it to `varies`")
        return self

    def _tunes_what_it_trains(self) -> None:
        """Trials that say nothing about the runs they are for, or that are those runs, are refused."""
        tuning, warmup = self.tuning, self.training.warmup_steps
        if tuning is None:
            return
        if tuning.seed in self.seeds.data:
            raise ValueError(f"tuning.seed {tuning.seed} is one of seeds.data: what is compared would be tuned on")
        if tuning.train_steps is not None and warmup is not None and tuning.train_steps <= warmup:
            raise ValueError(
                f"tuning.train_steps {tuning.train_steps} end within training.warmup_steps {warmup}: no trial would"
                " reach its learning rate"
            )

    @property
    def wanted(self) -> MatchSpec | None:
        """What sizes are solved for; None where they are as stated."""
        if self.scale is not None:
            return SCALES[self.scale]
        return self.match

    def wanted_of(self, contestant: str) -> MatchSpec | None:
        """The same for one contestant, which may have a size of its own."""
        size = self.contestants[contestant].size
        if self.wanted is None or size is None:
            return self.wanted
        return self.wanted.model_copy(update={"target": size})

    @property
    def folder(self) -> Path:
        """Where the study lies unless it is said otherwise."""
        return Path("output", self.study_name)

    @property
    def compared_with(self) -> str:
        return self.baseline or next(iter(self.contestants))

    @property
    def tuned(self) -> tuple[str, ...]:
        """Settings in which contestants may differ because they were tuned."""
        return () if self.tuning is None else tuple(f"training.{name}" for name in self.tuning.grid)

    def run_of(
        self, contestant: str, seeds: tuple[int, int] = (0, 0), changes: Mapping[str, Any] | None = None
    ) -> RunSpec:
        """The contestant's run with (data, init) seeds, its model as stated; `changes` are dotted keys."""
        section = self.contestants[contestant]
        fields: dict[str, Any] = {name: getattr(self, name).model_dump() for name in SHARED}
        fields |= {"experiment_name": contestant, "model": section.model, "data_seed": seeds[0], "init_seed": seeds[1]}
        for key, value in {**section.settings, **(changes or {})}.items():
            set_setting(fields, key, value, f"contestants.{contestant}.settings")
        return validate(RunSpec, fields, f"contestants.{contestant}")


def set_setting(fields: dict[str, Any], key: str, value: Any, source: str) -> None:
    """Set a dotted key; a whole section is replaced by what is given."""
    *parents, last = key.split(".")
    for part in parents:
        fields = fields.setdefault(part, {})
        if not isinstance(fields, dict):
            raise UserError(f"{source}: {key} is no setting of a run")
    fields[last] = value
