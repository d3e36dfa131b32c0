"""Induction (Olsson et al., arXiv 2209.11895; after Gu & Dao, arXiv 2312.00752): what followed this symbol before?

Random symbols, among them t a, and at the very end t again with a to be said. The trigger t is any symbol, drawn anew
for each instance, and stands nowhere else, so that it is known from the sequence alone. Its first place is dealt out
evenly: each five numbers in a row have one in each fifth of the sequence.
"""

from __future__ import annotations

import numpy as np

from lockstep.config.tasks import InductionSpec
from lockstep.data.randomness import Draws
from lockstep.data.tasks.task import Instance, Task, symbols
from lockstep.data.tokenizer_base import Tokenizer

BANDS = 5


class Induction(Task):
    name = "induction"

    def __init__(self, spec: InductionSpec, tokenizer: Tokenizer) -> None:
        super().__init__(spec, tokenizer)
        self.ids = symbols(tokenizer, spec.vocabulary, self.name)

    @property
    def levels(self) -> tuple[str, ...]:
        return (self.name,)

    def shortest(self, level: str) -> int:
        return 4

    def make(self, draws: Draws, number: int, length: int, level: str, split: str) -> Instance:
        count, room = len(self.ids), length - 3
        trigger = draws.one_below(count)
        # Any symbols but the trigger: those from it on move up by one.
        drawn = draws.below(count - 1, length)
        drawn += drawn >= trigger
        place = (number % BANDS * room + draws.one_below(room)) // BANDS
        drawn[[place, length - 2]] = trigger
        drawn[length - 1] = drawn[place + 1]
        tokens, answers = self.ids[drawn], np.zeros(length, dtype=np.int64)
        answers[-1] = 1
        return Instance(tokens, answers, (place / length,), level, (count - 1,), tokens.tobytes())
