"""What is measured of trained contestants, besides their score."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from lockstep.config.spec import Spec

Lengths = tuple[Annotated[int, Field(ge=2)], ...]


class MeasurementsSpec(Spec):
    """How long measuring takes is decided here."""

    sequences: PositiveInt | None = None
    """Sequences of the test split that are scored, the first ones; None means all of it."""
    lengths: Lengths = ()
    """Lengths of window at which the test split is scored too."""
    contexts: Lengths = (128, 512, 2048)
    """Tokens that a model has read when prefill and decoding are timed, one sequence at a time."""
    decoded: PositiveInt = 32
    """Tokens decoded after each context."""
    batch_lengths: Lengths = ()
    """Lengths at which a whole batch is read at once."""
    batch_size: PositiveInt = 10
    """Sequences of that batch."""
    rounds: PositiveInt = 5
    """Times that each is measured, after a warm-up."""
    streamed: Lengths = ()
    """Lengths of a text that is read in pieces, by models whose state does not grow with it."""
    prompts: tuple[str, ...] = ()
    """What every contestant continues."""
    sample_tokens: NonNegativeInt = 128
    """Tokens of a continuation."""
