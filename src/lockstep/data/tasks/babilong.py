"""Stories of bAbI scattered in books, after BABILong (Kuratov et al., arXiv 2406.10149).

Ours: the sentences of a story stand in their order at random sentence boundaries of an excerpt, anywhere in it; then
come the question and its answer, of which the answer is scored. As far as their published code tells, BABILong is
built the same way; it differs in that

- its books are those of PG19, ours the English novels, in splits of their own;
- it leaves out sentences of fewer than ten tokens, where ours are whole books;
- a sample's length counts the story and its surroundings, ours everything to the last token;
- it asks with instructions and examples, and an answer is right when the first sentence written holds it;
- its stories are those of the test files, of which ours leave out what is in the train files too.

In both, a story that is too long for a length is left out at that length.

`PublishedBabilong` are its own samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from lockstep.config.tasks import BabilongSpec
from lockstep.data.randomness import Draws, permutation
from lockstep.data.tasks.babi import Babi, Question
from lockstep.data.tasks.haystacks import Haystacks, encode_text, require_spelling
from lockstep.data.tasks.task import Instance, Task, Tokens
from lockstep.data.tokenizer_base import Tokenizer
from lockstep.errors import UserError

PUBLISHED = "RMT-team/babilong"
CONFIGURATIONS: dict[str, int] = {"0k": 0, **{f"{1 << n}k": 1024 << n for n in range(10)}, "1M": 1 << 20}
"""Of the published samples, and from how many tokens on each is taken."""
ANSWER_IS_SECOND = (0, 1, 0)


def make_babilong(spec: BabilongSpec, tokenizer: Tokenizer) -> Task:
    """Our stories in books, or the published samples."""
    return PublishedBabilong(spec, tokenizer) if spec.source == "published" else Babilong(spec, tokenizer)


@dataclass(frozen=True)
class Pool:
    """The questions of a split, in the order in which they are asked."""

    questions: tuple[Question, ...]
    sizes: NDArray[np.int64]
    """[questions]: tokens of each without surroundings."""

    def asked(self, number: int, length: int) -> Question:
        """All that fit into a length come once before any comes again."""
        fitting = np.flatnonzero(self.sizes <= length)
        return self.questions[int(fitting[number % len(fitting)])]


class Babilong(Task):
    name = "babilong"

    def __init__(self, spec: BabilongSpec, tokenizer: Tokenizer) -> None:
        super().__init__(spec, tokenizer)
        self.spec = spec
        self._babi = Babi()
        self._haystacks = Haystacks(tokenizer, {"books"})
        for level in spec.tasks:
            require_spelling(tokenizer, self._babi.task(level).answers, self.name)
        self._encoded = cache(partial(encode_text, tokenizer))
        self._pools = cache(self._make_pool)
        self._needed = cache(self._half_needs)

    @property
    def levels(self) -> tuple[str, ...]:
        return self.spec.tasks

    def shortest(self, level: str) -> int:
        """What half of the stories of each split need; where the length is short, the longer ones are left out."""
        return self._needed(level)

    def belongs(self, instance: Instance, split: str) -> bool:
        # The stories and the books of the splits are disjoint already: there is nothing to deal out.
        return True

    def make(self, draws: Draws, number: int, length: int, level: str, split: str) -> Instance:
        question = self._pools(level, split).asked(number, length)
        pieces = [self._encoded(f" {line.text}") for line in question.story]
        end, answers = self._asking(question)
        room = length - len(end) - sum(len(piece) for piece in pieces)
        excerpt = self._haystacks.find("books", split).excerpt(draws, room)
        places = excerpt.boundaries[np.sort(draws.below(len(excerpt.boundaries), len(pieces)))]
        text, begins = excerpt.hiding(pieces, places)
        begin = {line.number: int(place) for line, place in zip(question.story, begins, strict=True)}
        return Instance(
            tokens=np.concatenate([text, end]),
            answers=np.concatenate([np.zeros(len(text), dtype=np.int64), answers]),
            depths=(max(begin[number] for number in question.supporting) / length,),
            level=level,
            candidates=(len(self._babi.task(level).answers),),
            identity=question.identity,
        )

    def _asking(self, question: Question) -> tuple[Tokens, Tokens]:
        parts = [self._encoded(part) for part in asking(question.text, question.answer)]
        return np.concatenate(parts), np.repeat(ANSWER_IS_SECOND, [len(part) for part in parts])

    def _make_pool(self, level: str, split: str) -> Pool:
        questions = self._babi.task(level).splits[split]
        order = permutation(len(questions), "questions", self.name, level, split)
        ordered = tuple(questions[one] for one in order)
        return Pool(ordered, np.array([self._size(one) for one in ordered]))

    def _size(self, question: Question) -> int:
        story = sum(len(self._encoded(f" {line.text}")) for line in question.story)
        return story + len(self._asking(question)[0])

    def _half_needs(self, level: str) -> int:
        pools = [self._pools(level, split) for split in self._babi.task(level).splits]
        return max(int(np.sort(pool.sizes)[len(pool.sizes) // 2]) for pool in pools)


class PublishedBabilong(Task):
    """The samples of BABILong itself, read from the Hugging Face hub.

    They are as long as they are: `length` only chooses the configuration, whose tokens are not this tokenizer's.
    There are test samples alone. Which sentences support an answer is not told: depth is where its word stands last.
    """

    name = "babilong"

    def __init__(self, spec: BabilongSpec, tokenizer: Tokenizer, dataset: str = PUBLISHED) -> None:
        super().__init__(spec, tokenizer)
        self.spec = spec
        self._load = cache(partial(load_published, dataset))

    @property
    def levels(self) -> tuple[str, ...]:
        return self.spec.tasks

    def shortest(self, level: str) -> int:
        return 1

    def belongs(self, instance: Instance, split: str) -> bool:
        # All are test samples.
        return True

    def make(self, draws: Draws, number: int, length: int, level: str, split: str) -> Instance:
        if split != "test":
            raise UserError(f"babilong: the published samples have no {split} split; take source ours to train on it")
        samples = self._load(configuration(length), level)
        sample = samples[number % len(samples)]
        parts = [encode_text(self.tokenizer, part) for part in (sample.text, *asking(sample.question, sample.answer))]
        require_spelling(self.tokenizer, [sample.answer], self.name)
        return Instance(
            tokens=np.concatenate(parts),
            answers=np.repeat((0, *ANSWER_IS_SECOND), [len(part) for part in parts]),
            depths=(max(0, sample.text.rfind(sample.answer)) / len(sample.text),),
            level=level,
            candidates=(len({one.answer for one in samples}),),
            identity=f"{sample.text}\n{sample.question}".encode(),
        )


@dataclass(frozen=True)
class Sample:
    """A published sample."""

    text: str
    question: str
    answer: str


def asking(question: str, answer: str) -> tuple[str, str, str]:
    """How a question ends a text: each part is encoded by itself, and the second is scored."""
    return f"\nQuestion: {question} Answer:", f" {answer}", "."


def configuration(length: int) -> str:
    """The longest published configuration that has no more tokens than `length`."""
    return [name for name, size in CONFIGURATIONS.items() if size <= length][-1]


def load_published(dataset: str, name: str, level: str) -> list[Sample]:
    """The samples of one task in one configuration."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"hub:{dataset}: needs the datasets library; pip install 'lockstep-lm[hub]'") from None
    try:
        table = datasets.load_dataset(dataset, name, split=level)
        return [Sample(row["input"], row["question"].strip(), row["target"].strip()) for row in table]
    except Exception as error:  # the library raises many kinds: not found, offline, bad configuration
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"hub:{dataset}:{name} {level}: not loaded ({reason}); check the network, or take source ours"
        ) from None
