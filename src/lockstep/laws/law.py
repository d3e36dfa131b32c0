"""What a law is, and how it says that it was broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lockstep.laws.subject import Subject


class LawBroken(Exception):
    """A law does not hold; the message says what was seen, in one line."""


@dataclass(frozen=True, slots=True)
class Law:
    """A named statement about every architecture, with the function that tries to refute it."""

    name: str
    statement: str
    function: Callable[[Subject], None]
    """Returns when the law holds, raises LawBroken when not."""
    exempt: Callable[[Subject], str | None] = lambda subject: None
    """Why the law does not concern a subject; None when it does."""

    def applies(self, subject: Subject) -> bool:
        return self.exempt(subject) is None


def cannot_step(subject: Subject) -> str | None:
    """The exemption of models that see the whole sequence at once."""
    return None if subject.kind.causal else "bidirectional: it has no step"


def sees_everything(subject: Subject) -> str | None:
    return None if subject.kind.causal else "bidirectional: it has no past to reach into"
