"""Zero-shot questions to trained models."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, PositiveInt

from lockstep.config.spec import Spec
from lockstep.config.tasks import one_or_many

CommonsenseName = Literal["lambada_openai", "hellaswag", "winogrande", "boolq", "arc_easy", "arc_challenge"]
COMMONSENSE: tuple[CommonsenseName, ...] = get_args(CommonsenseName)


class CommonsenseSpec(Spec):
    """Which questions, and how many of them."""

    sets: Annotated[tuple[CommonsenseName, ...], BeforeValidator(one_or_many), Field(min_length=1)] = COMMONSENSE
    """The sets asked: the last word of a passage (lambada_openai), or the likeliest of several answers."""
    examples: PositiveInt | None = 500
    """The first so many of each set; None means all."""
