"""Selective copying (Gu & Dao, arXiv 2312.00752): symbols scattered among blanks, a separator, the symbols again.

Each symbol is a question of its own; its place among the blanks is random, so that counting tokens does not help. The
tokenizer's first two symbols are the blank and the separator, those after them are copied.
"""

from __future__ import annotations

import numpy as np

from lockstep.config.tasks import CopyingSpec
from lockstep.data.randomness import Draws
from lockstep.data.tasks.task import Instance, Task, symbols
from lockstep.data.tokenizer_base import Tokenizer


class Copying(Task):
    name = "copying"

    def __init__(self, spec: CopyingSpec, tokenizer: Tokenizer) -> None:
        super().__init__(spec, tokenizer)
        self.spec = spec
        ids = symbols(tokenizer, spec.vocabulary + 2, self.name)
        self.blank, self.separator, self.ids = int(ids[0]), int(ids[1]), ids[2:]

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(f"{count} symbols" for count in self.spec.symbols)

    def shortest(self, level: str) -> int:
        return 2 * self._count(level) + 1

    def make(self, draws: Draws, number: int, length: int, level: str, split: str) -> Instance:
        count = self._count(level)
        separator = length - count - 1
        places = np.sort(draws.distinct(separator, count))
        copied = self.ids[draws.below(len(self.ids), count)]
        tokens, answers = np.full(length, self.blank), np.zeros(length, dtype=np.int64)
        tokens[places], tokens[separator], tokens[separator + 1 :] = copied, self.separator, copied
        answers[separator + 1 :] = np.arange(1, count + 1)
        depths = tuple(int(place) / length for place in places)
        return Instance(tokens, answers, depths, level, (len(self.ids),) * count, tokens.tobytes())

    def _count(self, level: str) -> int:
        return int(level.split()[0])
