"""Recall from noisy showings: each key is shown several times, mostly with its value, then asked for once.

Three sorts of disturbance, each an exact share of all showings: corrupted ones have any other value; contradicting ones
agree on one other value for their key, and are gathered on as few keys as can be, else there is nobody to agree with;
outliers have a symbol that is never a value. More than half of every key's showings are true, so the value shown most
is the answer, without doubt. The tokenizer's first symbol is the blank, then come keys, values and outliers.
"""

from __future__ import annotations

import numpy as np

from lockstep.config.tasks import NoiseSpec
from lockstep.data.randomness import Draws
from lockstep.data.tasks.asking import shown_then_asked
from lockstep.data.tasks.task import Instance, Task, Tokens, symbols
from lockstep.data.tokenizer_base import Tokenizer
from lockstep.errors import UserError

OUTLIERS = 8
"""Symbols beyond the vocabulary that only outliers have."""


class NoisyRecall(Task):
    name = "noise"

    def __init__(self, spec: NoiseSpec, tokenizer: Tokenizer) -> None:
        super().__init__(spec, tokenizer)
        self.spec = spec
        ids = symbols(tokenizer, 1 + spec.vocabulary + OUTLIERS, self.name)
        half = spec.vocabulary // 2
        self.blank, self.keys, self.values = int(ids[0]), ids[1 : half + 1], ids[half + 1 : -OUTLIERS]
        self.outliers = ids[-OUTLIERS:]
        self.shares = {f"{100 * share:g} % corrupted": share for share in spec.corrupted}
        self.most = (spec.showings - 1) // 2
        """Showings of one key that may be disturbed."""
        if spec.pairs > len(self.keys):
            raise UserError(
                f"noise: {spec.pairs} pairs need as many keys, but a vocabulary of {spec.vocabulary} has"
                f" {len(self.keys)}; raise it"
            )
        disturbed = max(sum(self._disturbed(level)) for level in self.levels)
        if disturbed > spec.pairs * self.most:
            raise UserError(
                f"noise: {disturbed} of {spec.pairs * spec.showings} showings would be disturbed, but {spec.pairs} keys"
                f" shown {spec.showings} times bear {spec.pairs * self.most};"
                " lower corrupted, contradicting or outliers, or raise showings"
            )

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.shares)

    def shortest(self, level: str) -> int:
        return 2 * self.spec.pairs * self.spec.showings + 2 * self.spec.pairs

    def make(self, draws: Draws, number: int, length: int, level: str, split: str) -> Instance:
        pairs, showings = self.spec.pairs, self.spec.showings
        keys = self.keys[draws.distinct(len(self.keys), pairs)]
        true = draws.below(len(self.values), pairs)
        order = draws.order(pairs * showings)
        given = self._given(draws, true, level)[order]
        key = order // showings
        shown = np.stack([keys[key], given], axis=1).ravel()
        values = self.values[true]
        truthful = np.flatnonzero(given == values[key])
        last = np.zeros(pairs, dtype=np.int64)
        np.maximum.at(last, key[truthful], truthful)
        tokens, answers, asked = shown_then_asked(draws, shown, keys, values, self.blank, length)
        depths = tuple(2 * int(place) / length for place in last[asked])
        return Instance(tokens, answers, depths, level, (len(self.values),) * pairs, shown.tobytes())

    def _given(self, draws: Draws, true: Tokens, level: str) -> Tokens:
        """[pairs × showings]: the tokens shown for the first key, for the second, ...; the disturbed ones first."""
        corrupted, contradicting, outliers = self._disturbed(level)
        # Places that may be disturbed, key by key; contradictions take them in turn, the other sorts at random.
        free = np.arange(len(true) * self.most)
        chosen = contradicting + draws.distinct(len(free) - contradicting, corrupted + outliers)
        places = free // self.most * self.spec.showings + free % self.most
        wrong, strange = places[chosen[:corrupted]], places[chosen[corrupted:]]
        contrary = places[:contradicting]
        value = np.repeat(true, self.spec.showings)
        value[wrong] = self._others(draws, value[wrong])
        value[contrary] = self._others(draws, true)[contrary // self.spec.showings]
        tokens = self.values[value]
        tokens[strange] = self.outliers[draws.below(OUTLIERS, outliers)]
        return tokens

    def _others(self, draws: Draws, value: Tokens) -> Tokens:
        """For each value any other one."""
        return (value + 1 + draws.below(len(self.values) - 1, len(value))) % len(self.values)

    def _disturbed(self, level: str) -> tuple[int, int, int]:
        """How many showings are corrupted, contradict, and are outliers."""
        showings = self.spec.pairs * self.spec.showings
        shares = (self.shares[level], self.spec.contradicting, self.spec.outliers)
        corrupted, contradicting, outliers = (round(share * showings) for share in shares)
        return corrupted, contradicting, outliers
