"""Who competes, at which size."""

from __future__ import annotations

from lockstep.config.study import StudySpec
from lockstep.models.registry import specify
from lockstep.models.spec import ModelSpec
from lockstep.study.match import match


def contestants(study: StudySpec, vocab_size: int) -> dict[str, ModelSpec]:
    """The model of each contestant: as stated, or as large as the study wants them all to be."""
    length = study.data.max_sequence_length
    models = {}
    for name, section in study.contestants.items():
        fields = {"max_length": length, **section.fields(), "vocab_size": vocab_size}
        if study.wanted is None:
            models[name] = specify(section.architecture, fields, f"contestants.{name}")
        else:
            models[name] = match(section.architecture, fields, study.wanted, length)
    return models
