"""Multi-query associative recall (Arora et al., arXiv 2312.04927): pairs shown once, asked for in another order.

k₁ v₁ k₂ v₂ ... kₙ vₙ, then blanks with the same pairs among them, each once, wherever there is room. With overwrites,
some keys are shown a second time among the pairs, and the value shown last is the one that counts.
"""

from __future__ import annotations

import numpy as np

from lockstep.config.tasks import RecallSpec
from lockstep.data.randomness import Draws
from lockstep.data.tasks.asking import shown_then_asked
from lockstep.data.tasks.task import Instance, Task, symbols
from lockstep.data.tokenizer_base import Tokenizer
from lockstep.errors import UserError


class Recall(Task):
    name = "recall"

    def __init__(self, spec: RecallSpec, tokenizer: Tokenizer) -> None:
        super().__init__(spec, tokenizer)
        self.spec = spec
        ids = symbols(tokenizer, spec.vocabulary + 1, self.name)
        half = spec.vocabulary // 2
        self.blank, self.keys, self.values = int(ids[0]), ids[1 : half + 1], ids[half + 1 :]
        if max(spec.pairs) > len(self.keys):
            raise UserError(
                f"recall: {max(spec.pairs)} pairs need as many keys, but a vocabulary of {spec.vocabulary} has"
                f" {len(self.keys)}; raise it"
            )

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(f"{pairs} pairs" for pairs in self.spec.pairs)

    def shortest(self, level: str) -> int:
        pairs = self._pairs(level)
        return 2 * (pairs + self._overwritten(pairs)) + 2 * pairs

    def make(self, draws: Draws, number: int, length: int, level: str, split: str) -> Instance:
        pairs = self._pairs(level)
        # Which key is shown when, and its values; whoever is shown twice stands anywhere among the others.
        again = draws.distinct(pairs, self._overwritten(pairs))
        order = np.concatenate([np.arange(pairs), again])[draws.order(pairs + len(again))]
        keys = self.keys[draws.distinct(len(self.keys), pairs)]
        given = self.values[draws.below(len(self.values), len(order))]
        shown = np.stack([keys[order], given], axis=1).ravel()
        last = np.zeros(pairs, dtype=np.int64)
        np.maximum.at(last, order, np.arange(len(order)))
        tokens, answers, asked = shown_then_asked(
            draws, shown, keys, given[last], self.blank, length, self._rounds(split)
        )
        depths = tuple(2 * int(place) / length for place in last[asked])
        candidates = (len(self.values),) * len(asked)
        return Instance(tokens, answers, depths, level, candidates, shown.tobytes())

    def _rounds(self, split: str) -> int:
        return self.spec.questions if split == "train" else 1

    def _pairs(self, level: str) -> int:
        return int(level.split()[0])

    def _overwritten(self, pairs: int) -> int:
        return round(self.spec.overwrites * pairs)
