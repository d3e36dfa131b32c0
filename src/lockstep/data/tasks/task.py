"""What a task is: numbered instances, each a pure function of (task, seed, split, number).

An answer is one or more tokens in a row. It is right when every one of them is the likeliest given all before it, which
is the same as being right when written greedily: up to the first mistake, what was written is what stands there.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.config.tasks import TaskSpec
from lockstep.data.randomness import Draws
from lockstep.data.tokenizer_base import Tokenizer
from lockstep.errors import UserError

Tokens = NDArray[np.int64]
SPLIT_SHARES = {"test": (0,), "valid": (1,), "train": (2, 3, 4, 5, 6, 7)}
"""Which eighths of all possible instances belong to a split."""
MOST_ATTEMPTS = 1000


@dataclass(frozen=True)
class Instance:
    """One sequence, and what is asked in it."""

    tokens: Tokens
    """[length]"""
    answers: NDArray[np.int64]
    """[length]: 0 where nothing is asked; 1, 2, ... where the token is a part of the first, second, ... answer."""
    depths: tuple[float, ...]
    """Per answer, where that stands which it asks for: 0 the beginning, 1 the end; of several places the latest."""
    level: str
    candidates: tuple[int, ...]
    """Per answer, how many equally likely answers there are: one guessed among them is right once in so many times."""
    identity: bytes
    """What makes it this instance: those of different splits are never equal."""


class Task(ABC):
    """Makes instances for one tokenizer."""

    name: str

    def __init__(self, spec: TaskSpec, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @property
    @abstractmethod
    def levels(self) -> tuple[str, ...]:
        """Names of its difficulties; training draws from all of them alike."""

    @abstractmethod
    def make(self, draws: Draws, number: int, length: int, level: str, split: str) -> Instance:
        """Any instance of `length` tokens; `number` may stratify what should be even."""

    @abstractmethod
    def shortest(self, level: str) -> int:
        """Tokens that an instance of this level needs at least."""

    def belongs(self, instance: Instance, split: str) -> bool:
        """Whether an instance is this split's: all that are possible are dealt out among the splits."""
        eighth = hashlib.sha256(instance.identity).digest()[0] % 8
        return eighth in SPLIT_SHARES[split]

    def instance(self, split: str, number: int, length: int, level: str | None = None, seed: int = 0) -> Instance:
        """Instance `number` of a split; without a level, one of all of them."""
        chosen = level or self.levels[Draws("level", self.name, seed, split, number).one_below(len(self.levels))]
        if length < self.shortest(chosen):
            raise UserError(
                f"{self.name} {chosen}: {length} tokens are too few for an instance; {self.shortest(chosen)} are needed"
            )
        for attempt in range(MOST_ATTEMPTS):
            draws = Draws("instance", self.name, seed, split, number, length, chosen, attempt)
            made = self.make(draws, number, length, chosen, split)
            if self.belongs(made, split):
                return made
        raise UserError(f"{self.name} {chosen}: too few different instances for a {split} split; make it harder")


def symbols(tokenizer: Tokenizer, count: int, task: str) -> Tokens:
    """The ids of `count` tokens that are not special, the first ones: what tasks without text are written in."""
    regular = np.setdiff1d(np.arange(tokenizer.vocab_size), sorted(tokenizer.special_ids))
    if len(regular) < count:
        raise UserError(
            f"{task}: {count} symbols are needed, but the {tokenizer.kind} tokenizer has {len(regular)} besides its"
            " special ones; lower the task's vocabulary, or take tokenizer.tokenizer_type symbols with a larger"
            " tokenizer.vocab_size"
        )
    return regular[:count].astype(np.int64)
