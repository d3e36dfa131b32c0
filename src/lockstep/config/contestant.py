"""One contestant of a study: a model, and what else is its own."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from lockstep.config.match import Amount
from lockstep.config.model import ModelSection


class ContestantSection(ModelSection):
    """A `model` section and two keys more."""

    size: Amount | None = None
    """Instead of the study's target: contestants of other sizes are not compared with each other, but their losses
    are fitted."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys of a run, such as tokenizer.tokenizer_type, that the study declares to vary."""

    @property
    def model(self) -> ModelSection:
        """The model alone."""
        given = self.model_dump(exclude={"size", "settings"}, exclude_unset=True)
        return ModelSection.model_validate(given)
