"""Who competes, at which size."""

from __future__ import annotations

from lockstep.config.study import StudySpec
from lockstep.errors import UserError
from lockstep.models.registry import find, specify
from lockstep.models.spec import ModelSpec
from lockstep.study.match import match
from lockstep.training.context import check_against_data, check_size


def contestants(study: StudySpec, vocab_size: int) -> dict[str, ModelSpec]:
    """The model of each contestant: as stated, or as large as the study wants them all to be."""
    return {name: contestant(study, name, vocab_size) for name in study.contestants}


def contestant(study: StudySpec, name: str, vocab_size: int) -> ModelSpec:
    """Checked as a run of it would be; whatever is wrong is said of this contestant."""
    section, length, source = study.contestants[name], study.data.max_sequence_length, f"contestants.{name}"
    fields = {"vocab_size": vocab_size, "max_length": length, **section.fields()}
    try:
        find(section.architecture)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    if study.wanted is None:
        spec = specify(section.architecture, fields, source)
    else:
        spec = match(section.architecture, fields, study.wanted, length, source)
    try:
        check_size(spec)
        return check_against_data(spec, vocab_size, length)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
