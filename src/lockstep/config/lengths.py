"""Texts far longer than those a model was trained on."""

from __future__ import annotations

from pydantic import PositiveInt

from lockstep.config.spec import Spec


class LengthsSpec(Spec):
    """How long they are, how many, and after how much context tokens are scored."""

    times: PositiveInt = 64
    """The longest text read, as a multiple of the training length."""
    texts: PositiveInt = 4
    """Texts of that length, spread over the test split."""
    contexts: tuple[PositiveInt, ...] = ()
    """Tokens of context given before the scored ones; powers of two up to the longest by default."""
    scored: PositiveInt = 64
    """Tokens scored after each context."""
