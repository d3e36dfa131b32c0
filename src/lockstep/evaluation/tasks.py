"""How many answers of a task are right, by level, length and depth.

Instances are read in pieces, so that a million tokens take no more memory than a thousand, where the state does not
grow. A guess among the candidates is right once in so many times: that is chance, and it is told with every score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.data.tasks.task import Instance, Task
from lockstep.evaluation.inference import longest
from lockstep.evaluation.language import Progress
from lockstep.evaluation.reading import PIECE, read_in_pieces
from lockstep.evaluation.timing import in_mode
from lockstep.models.language_model import LanguageModel

TOKENS_AT_ONCE = 2**14
"""Over all instances that are read together."""
SHORTEST_PIECE = 64
"""Shorter ones would cost speed."""


@dataclass(slots=True)
class Band:
    """Answers to what stands between two depths; 0 is the beginning of an instance, 1 its end."""

    first: float
    last: float
    answers: int = 0
    right: int = 0


@dataclass(slots=True)
class TaskScore:
    """Of one level at one length."""

    level: str
    length: int
    bands: list[Band]
    answers: int = 0
    right: int = 0
    guessed: float = field(default=0.0)
    """Answers that guessing would have got right, on average."""

    def add(self, instance: Instance, right: NDArray[np.bool_]) -> None:
        for depth, candidates, hit in zip(instance.depths, instance.candidates, right.tolist(), strict=True):
            band = self.bands[min(int(depth * len(self.bands)), len(self.bands) - 1)]
            band.answers += 1
            band.right += hit
            self.answers += 1
            self.right += hit
            self.guessed += 1 / candidates

    def as_dict(self) -> dict[str, Any]:
        found = {"level": self.level, "length": self.length, "answers": self.answers, "right": self.right}
        return {**found, "chance": self.guessed / self.answers, "bands": [asdict(band) for band in self.bands]}


def score_task(
    model: LanguageModel,
    task: Task,
    lengths: Sequence[int],
    instances: int,
    bands: int = 5,
    progress: Progress | None = None,
) -> list[TaskScore]:
    """The first `instances` of the test split at every level and length; none where positions end before that."""
    most = longest(model)
    cells = [(level, length) for length in lengths for level in task.levels if most is None or length <= most]
    scores = []
    for done, (level, length) in enumerate(cells, start=1):
        edges = np.linspace(0, 1, bands + 1).tolist()
        score = TaskScore(level, length, [Band(*ends) for ends in pairwise(edges)])
        made = (task.instance("test", number, length, level) for number in range(instances))
        for together in batches(made):
            for instance, right in zip(together, answered(model, together), strict=True):
                score.add(instance, right)
        scores.append(score)
        if progress is not None:
            progress(done / len(cells))
    return scores


def batches(instances: Iterator[Instance]) -> Iterator[list[Instance]]:
    """Instances of equal length, as many as are read together."""
    for length, alike in groupby(instances, key=lambda one: len(one.tokens)):
        waiting: list[Instance] = []
        for one in alike:
            if waiting and (len(waiting) + 1) * length > TOKENS_AT_ONCE:
                yield waiting
                waiting = []
            waiting.append(one)
        if waiting:
            yield waiting


def answered(model: LanguageModel, instances: Sequence[Instance]) -> list[NDArray[np.bool_]]:
    """For each instance, which of its answers the model would write, [answers]."""
    tokens = torch.from_numpy(np.stack([one.tokens for one in instances]))
    likeliest = torch.zeros_like(tokens)
    # As many logits at once as one sequence's piece has, whatever the vocabulary.
    piece = max(SHORTEST_PIECE, PIECE // len(instances))
    with in_mode(model, training=False):
        for start, logits in read_in_pieces(model, tokens[:, :-1], piece):
            likeliest[:, start + 1 : start + 1 + logits.shape[1]] = logits.argmax(dim=-1).cpu()
    hits = (likeliest == tokens).numpy()
    return [
        np.array([row[one.answers == number].all() for number in range(1, len(one.depths) + 1)])
        for one, row in zip(instances, hits, strict=True)
    ]
