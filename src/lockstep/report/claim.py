"""What can be claimed: an order, a number, a change, a cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Entrant:
    """A contestant that a claim is about."""

    architectures: tuple[str, ...]
    without: str | None = None
    """The one part that was taken from it."""

    def __str__(self) -> str:
        name = " or ".join(self.architectures)
        return name if self.without is None else f"{name} without {self.without}"


@dataclass(frozen=True)
class Claim:
    source: str
    text: str


@dataclass(frozen=True)
class Better(Claim):
    """Predicts better: an ordering, testable where both compete at a size that is not far below the claimed one."""

    better: Entrant
    worse: Entrant
    noisy: bool = False
    """Said of noisy data: text, or a task whose showings are corrupted."""
    parameters: float | None = None
    """Said of one size, where other sizes have the other order."""
    smallest: float | None = None
    """The smallest size that it was said of; None where no size was."""


@dataclass(frozen=True)
class Answers(Claim):
    """Answers more of a generated task: an ordering, testable where both were asked at about the claimed length."""

    better: Entrant
    worse: Entrant
    task: str
    level: str | None
    """None: of all levels together."""
    length: int
    beyond: bool = False
    """Said of all that is longer than that; the longest that both were asked at is taken."""


@dataclass(frozen=True)
class Faster(Claim):
    """Trains faster."""

    faster: Entrant
    slower: Entrant
    length: int | None = None
    """Said of one sequence length; None: of all."""


@dataclass(frozen=True)
class Score(Claim):
    """An absolute number of bits per byte, testable on the same text at about the same size."""

    entrant: Entrant
    bits_per_byte: float
    corpus: str
    parameters: float


Measure = Literal["perplexity", "accuracy", "decode time", "decode memory"]


@dataclass(frozen=True)
class Changed(Claim):
    """A change against the baseline: a ratio minus 1, or a difference of shares for accuracy."""

    entrant: Entrant
    against: Entrant
    measure: Measure
    change: float
    within: float = 0.0
    """How far ours may lie off, where it has no interval: of the ratio."""


@dataclass(frozen=True)
class Because(Claim):
    """Most of the time by which decoding is slower goes into some parts."""

    entrant: Entrant
    against: Entrant
    parts: str
    """How their names begin."""


@dataclass(frozen=True)
class Elsewhere(Claim):
    """Cannot be tested by a study of this kind."""

    needs: str


def only(name: str) -> Entrant:
    return Entrant((name,))
