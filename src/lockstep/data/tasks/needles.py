"""Needles in a haystack, in the manner of RULER (Hsieh et al., arXiv 2404.06654), in our own words.

A needle says "The secret number of the amber falcon is 1234567."; it stands between two sentences of other text, and
at the end the sentence is begun once more for the model to finish. `passkey`, `number` and `word` are the S-NIAH-1, 2
and 3 of RULER and the PK, N and W of Titans; but a pass key has five digits, and a word is made of four syllables
where RULER has a UUID. `multi-key` hides needles of other keys too, `multi-value` several values of one key, which
are to be said in their order, and `multi-query` asks for every key, in an order of its own.

Each word of a needle and of its question is encoded by itself, so that a value has the same tokens in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lockstep.config.tasks import Haystack as Source
from lockstep.config.tasks import NeedlesSpec
from lockstep.data.randomness import Draws
from lockstep.data.tasks.haystacks import Haystacks, encode_text, require_spelling
from lockstep.data.tasks.needle_facts import ADJECTIVES, CONSONANTS, KINDS, NOUNS, VOWELS, Fact, draw_keys
from lockstep.data.tasks.task import Instance, Task, Tokens
from lockstep.data.tokenizer_base import Tokenizer
from lockstep.errors import UserError

ASKED_ALONE = ("passkey", "number", "word", "multi-key")
"""Kinds that ask for one needle: its depth goes through the bands in turn."""


class Needles(Task):
    name = "needles"

    def __init__(self, spec: NeedlesSpec, tokenizer: Tokenizer) -> None:
        super().__init__(spec, tokenizer)
        self.spec = spec
        if spec.keys > len(ADJECTIVES) * len(NOUNS):
            raise UserError(f"needles: keys is {spec.keys}, but there are {len(ADJECTIVES) * len(NOUNS)}; lower it")
        require_spelling(tokenizer, ("1234567890", CONSONANTS + VOWELS), self.name)
        self._pieces: dict[str, Tokens] = {}
        self._haystacks = Haystacks(tokenizer, {self._source(kind) for kind in spec.kinds})

    @property
    def levels(self) -> tuple[str, ...]:
        return self.spec.kinds

    def shortest(self, level: str) -> int:
        """The longest words and values that there are, and a sentence around them."""
        kind = KINDS[level]
        sentence, needles = int(self._haystacks.repeated.starts[1]), self._count(level)
        # No tokenizer in use makes more tokens than there are characters, but for a mark of the beginning.
        value = kind.longest + 2
        said = self._sentence_size(kind.thing) + value
        asked = self._question_size(kind.thing) + value
        if level == "multi-value":
            asked += (needles - 1) * (len(self._piece(",")) + value)
        return sentence + needles * said + asked * (needles if level == "multi-query" else 1)

    def make(self, draws: Draws, number: int, length: int, level: str, split: str) -> Instance:
        kind, facts = KINDS[level], self._facts(draws, level)
        # The needle that is asked for alone is the first here; where it stands among the others is its depth's affair.
        asked = facts[:1] if level in ASKED_ALONE else facts
        end, answers = self._asking(kind.thing, asked, together=level == "multi-value")
        needles = [self._saying(kind.thing, fact.key, [fact.value])[0] for fact in facts]
        room = length - len(end) - sum(len(needle) for needle in needles)
        excerpt = self._haystacks.find(self._source(level), split).excerpt(draws, room)
        wanted = self._depths(draws, number, level, len(facts))
        order = np.argsort(wanted, kind="stable")
        text, begins = excerpt.hiding([needles[one] for one in order], excerpt.nearest(wanted[order]))
        begin = dict(zip(order.tolist(), begins.tolist(), strict=True))
        return Instance(
            tokens=np.concatenate([text, end]),
            answers=np.concatenate([np.zeros(len(text), dtype=np.int64), answers]),
            depths=tuple(begin[one] / length for one in range(len(asked))),
            level=level,
            candidates=(kind.candidates,) * len(asked),
            identity="\n".join(sorted(f"{' '.join(fact.key)}: {fact.value}" for fact in facts)).encode(),
        )

    def _facts(self, draws: Draws, level: str) -> list[Fact]:
        count = self._count(level)
        keys = draw_keys(draws, 1) * count if level == "multi-value" else draw_keys(draws, count)
        return [Fact(key, KINDS[level].draw(draws)) for key in keys]

    def _depths(self, draws: Draws, number: int, level: str, count: int) -> NDArray[np.float64]:
        """[count]: where in the haystack the needles are wanted."""
        depths = draws.uniform(count)
        if level in ASKED_ALONE:
            depths[0] = (number % self.spec.depths + depths[0]) / self.spec.depths
        # Values of one key are to be said in the order in which they stand.
        return np.sort(depths) if level == "multi-value" else depths

    def _asking(self, thing: str, facts: Sequence[Fact], together: bool) -> tuple[Tokens, Tokens]:
        """The questions with their answers, and which tokens are the first, second, ... answer."""
        questions = [(facts[0].key, facts)] if together else [(fact.key, [fact]) for fact in facts]
        tokens: list[Tokens] = []
        answers: list[Tokens] = []
        for asked, (key, wanted) in enumerate(questions):
            said, is_value = self._saying(thing, key, [fact.value for fact in wanted])
            question = self._joined(f"\nWhat is the {thing} of the", *key, "?")
            tokens += [question, said]
            answers += [np.zeros_like(question), np.where(is_value > 0, is_value + asked, 0)]
        return np.concatenate(tokens), np.concatenate(answers)

    def _saying(self, thing: str, key: tuple[str, str], values: Sequence[str]) -> tuple[Tokens, Tokens]:
        """The sentence that gives a key its value or values, and which of its tokens are the first, second, ... one."""
        parts = [self._joined(f" The {thing} of the", *key, "is")]
        marks = [0]
        for number, value in enumerate(values, start=1):
            parts += [encode_text(self.tokenizer, f" {value}"), self._piece("." if number == len(values) else ",")]
            marks += [number, 0]
        return np.concatenate(parts), np.repeat(marks, [len(part) for part in parts])

    def _joined(self, begin: str, *words: str) -> Tokens:
        """A beginning and words after it, each encoded by itself: so the longest there are bound every other."""
        pieces = [begin, *(word if word == "?" else f" {word}" for word in words)]
        return np.concatenate([self._piece(piece) for piece in pieces])

    def _piece(self, text: str) -> Tokens:
        """The tokens of one of a few hundred fixed pieces of text."""
        if text not in self._pieces:
            self._pieces[text] = encode_text(self.tokenizer, text)
        return self._pieces[text]

    @cached_property
    def _longest_key(self) -> int:
        return sum(max(len(self._piece(f" {word}")) for word in words) for words in (ADJECTIVES, NOUNS))

    def _sentence_size(self, thing: str) -> int:
        """Tokens of a needle without its value, at most."""
        return len(self._joined(f" The {thing} of the", "is")) + len(self._piece(".")) + self._longest_key

    def _question_size(self, thing: str) -> int:
        return len(self._joined(f"\nWhat is the {thing} of the", "?")) + self._longest_key + self._sentence_size(thing)

    def _count(self, level: str) -> int:
        """Needles of an instance."""
        many = {"multi-key": self.spec.keys, "multi-query": self.spec.keys, "multi-value": self.spec.values}
        return many.get(level, 1)

    def _source(self, level: str) -> Source:
        return self.spec.haystack or ("repeated" if level == "passkey" else "books")
