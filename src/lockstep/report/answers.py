"""Shares of right answers to generated tasks: their intervals, whether they beat chance, and how two compare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from lockstep.report.intervals import newcombe, student, wilson
from lockstep.report.results import Contestant, TaskRun, TaskScore

TITLES = {
    "recall": "Associative recall",
    "induction": "Induction",
    "copying": "Selective copying",
    "states": "State tracking",
    "noise": "Recall from noisy showings",
    "needles": "Needles in a haystack",
    "babilong": "Stories in books",
}
"""What readers know the tasks by."""


class Rate(NamedTuple):
    """A share of right answers with its 95 % interval."""

    accuracy: float
    low: float
    high: float
    over: Literal["seeds", "answers"]
    """What the interval is over."""


def rate(score: TaskScore) -> Rate:
    """Student's t over seeds; Wilson's over answers where there is one seed, or all agree and so show no spread."""
    shares = score.accuracies
    mean, low, high = student(shares)
    if low is None or high is None or min(shares) == max(shares):
        return Rate(mean, *wilson(*counted(score)), "answers")
    return Rate(mean, max(0.0, low), min(1.0, high), "seeds")


def counted(score: TaskScore) -> tuple[int, int]:
    """Right answers and all answers, of all seeds."""
    return sum(run.right for run in score.runs), sum(run.answers for run in score.runs)


def beats_chance(score: TaskScore) -> bool:
    """Whether more is right than by guessing, both over seeds and over answers."""
    return min(rate(score).low, wilson(*counted(score))[0]) > score.chance


def intervals_said(scores: Iterable[TaskScore]) -> str:
    """What the intervals of some scores are over."""
    there = list(scores)
    kinds = {rate(one).over for one in there}
    seeds = "over seeds (Student's t)"
    if kinds == {"seeds"}:
        return f"95 % intervals {seeds}"
    alone = all(len(one.runs) == 1 for one in there)
    answers = f"over the answers{' of one seed' if alone else ''} (Wilson)"
    return (
        f"95 % intervals {answers}"
        if kinds == {"answers"}
        else f"95 % intervals {seeds}, or {answers} where seeds do not differ"
    )


def chance_said(chance: float) -> str:
    """In percent, however small."""
    return f"{100 * chance:.1f} %" if chance >= 0.001 else f"{100 * chance:.1g} %"


# Which scores.


def tasks_of(contestants: Iterable[Contestant]) -> list[str]:
    """In the order in which they were tested."""
    return list(dict.fromkeys(score.task for one in contestants for score in one.tasks))


def scores_of(one: Contestant, task: str) -> list[TaskScore]:
    return [score for score in one.tasks if score.task == task]


def levels_of(contestants: Iterable[Contestant], task: str) -> list[str]:
    return list(dict.fromkeys(score.level for one in contestants for score in scores_of(one, task)))


def lengths_of(contestants: Iterable[Contestant], task: str) -> list[int]:
    return sorted({score.length for one in contestants for score in scores_of(one, task)})


def score_at(one: Contestant, task: str, length: int, level: str | None = None) -> TaskScore | None:
    """Of one level, or of all of them together."""
    there = [score for score in scores_of(one, task) if score.length == length and level in (None, score.level)]
    return pooled(there)


def pooled(scores: Sequence[TaskScore]) -> TaskScore | None:
    """All answers of some levels or lengths as if they were one's, of the seeds that have them all; None without."""
    if len(scores) < 2:
        return scores[0] if scores else None
    seeds = sorted(set.intersection(*({run.data_seed for run in one.runs} for one in scores)))
    if not seeds:
        return None
    runs = [[run for one in scores for run in one.runs if run.data_seed == seed] for seed in seeds]
    answers = [counted(one)[1] for one in scores]
    return TaskScore(
        task=scores[0].task,
        level=", ".join(dict.fromkeys(one.level for one in scores)),
        length=max(one.length for one in scores),
        chance=sum(one.chance * count for one, count in zip(scores, answers, strict=True)) / sum(answers),
        runs=tuple(
            TaskRun(data_seed=seed, answers=sum(run.answers for run in own), right=sum(run.right for run in own))
            for seed, own in zip(seeds, runs, strict=True)
        ),
        bands=(),
    )


def nearest(lengths: Iterable[int], wanted: int) -> int:
    """The length that differs least, as a ratio."""
    return min(lengths, key=lambda length: abs(math.log(length / wanted)))


def hardest(contestants: Sequence[Contestant], task: str, length: int) -> str:
    """The level that all together answer least at a length; of equals the last."""

    def accuracy(level: str) -> float:
        found = [found.accuracy for one in contestants if (found := score_at(one, task, length, level)) is not None]
        return sum(found) / len(found) if found else math.inf

    return min(reversed(levels_of(contestants, task)), key=accuracy)


# Two of them.


class Gap(NamedTuple):
    """One share of right answers minus another, over the seeds that both have."""

    effect: float
    low: float
    high: float
    seeds: int

    @property
    def separable(self) -> bool:
        return not self.low <= 0 <= self.high


def gap(ours: TaskScore, theirs: TaskScore) -> Gap | None:
    """Student's t over pairs of seeds; Newcombe's over answers where all pairs agree; None below two seeds."""
    others = {run.data_seed: run for run in theirs.runs}
    pairs = [(run, others[run.data_seed]) for run in ours.runs if run.data_seed in others]
    differences = [own.right / own.answers - other.right / other.answers for own, other in pairs]
    if len(differences) < 2:
        return None
    effect, low, high = student(differences)
    if low is None or high is None or max(differences) - min(differences) < 1e-12:
        low, high = newcombe(counted(ours), counted(theirs))
    return Gap(effect, low, high, len(differences))
