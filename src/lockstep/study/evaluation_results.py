"""What the tests of a study found, over all repeats of a contestant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.config.spec import Spec
from lockstep.config.study import StudySpec
from lockstep.config.tasks import TASKS
from lockstep.evaluation import detail
from lockstep.report.results import AtContext, Band, Bucket, CommonsenseScore, TaskRun, TaskScore
from lockstep.study.run_results import found_in

Repeats = Mapping[int, Path]
"""Run folders by their data seed."""
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Tests:
    """What a study asks now: what was found with other knobs is not told."""

    asked: Mapping[str, Any]
    """Knobs by the name of the file."""

    @classmethod
    def of(cls, study: StudySpec) -> Tests:
        evaluate = study.evaluate
        named: dict[str, Spec | None] = {one.name: one for one in evaluate.tasks(study.data.tasks)}
        named |= {"beyond": evaluate.lengths, "commonsense": evaluate.commonsense}
        return cls({name: knobs.model_dump(mode="json") for name, knobs in named.items() if knobs is not None})

    def found(self, folder: Path, name: str) -> Entry:
        """What one repeat's test found; empty where it was not done, or done otherwise."""
        return found_in(folder, name, asked=self.asked[name]) if name in self.asked else {}


def task_scores(tests: Tests, repeats: Repeats) -> tuple[TaskScore, ...]:
    """Level by level and length by length, as they were tested."""
    return tuple(score for task in TASKS for score in scores_of(task, tests, repeats))


def scores_of(task: str, tests: Tests, repeats: Repeats) -> Iterator[TaskScore]:
    cells: dict[tuple[str, int], dict[int, Entry]] = {}
    for seed, folder in repeats.items():
        for one in tests.found(folder, task).get("scores", ()):
            cells.setdefault((one["level"], one["length"]), {})[seed] = one
    for (level, length), found in cells.items():
        yield TaskScore(
            task=task,
            level=level,
            length=length,
            chance=next(iter(found.values()))["chance"],
            runs=tuple(
                TaskRun(data_seed=seed, answers=one["answers"], right=one["right"]) for seed, one in found.items()
            ),
            bands=joined_bands([one["bands"] for one in found.values()]),
        )


def joined_bands(repeats: Sequence[Sequence[Entry]]) -> tuple[Band, ...]:
    """The answers of all repeats together."""
    return tuple(
        Band(
            first=same[0]["first"],
            last=same[0]["last"],
            answers=sum(one["answers"] for one in same),
            right=sum(one["right"] for one in same),
        )
        for same in zip(*repeats, strict=True)
    )


def positions(tests: Tests, folders: Sequence[Path]) -> tuple[Bucket, ...]:
    """Losses by position in long texts, the tokens of all repeats together; none where one of them was not finite."""
    every = [found for folder in folders if (found := tests.found(folder, "beyond").get("positions"))]
    lost = {(one["first"], one["last"]) for found in every for one in found if one["loss"] is None}
    kept = [[one for one in found if (one["first"], one["last"]) not in lost] for found in every]
    parts = [
        [detail.Bucket(one["first"], one["last"], one["tokens"], one["tokens"] * one["loss"]) for one in found]
        for found in kept
    ]
    return tuple(Bucket.model_validate(one.as_dict()) for one in detail.joined(parts))


def contexts(tests: Tests, folders: Sequence[Path]) -> tuple[AtContext, ...]:
    """Means over repeats; none where one of them was not finite."""
    by_context: dict[int, list[Entry]] = {}
    for folder in folders:
        for one in tests.found(folder, "beyond").get("contexts", ()):
            by_context.setdefault(one["context"], []).append(one)
    found = []
    for context, same in sorted(by_context.items()):
        if any(one["loss"] is None for one in same):
            continue
        loss = float(np.mean([one["loss"] for one in same]))
        tokens = sum(one["tokens"] for one in same)
        found.append(AtContext(context=context, tokens=tokens, loss=loss, perplexity=float(np.exp(loss))))
    return tuple(found)


def commonsense(tests: Tests, folders: Sequence[Path]) -> tuple[CommonsenseScore, ...]:
    """Means over repeats; the error is that of one repeat, over questions: all repeats were asked the same."""
    by_set: dict[tuple[str, str], list[Entry]] = {}
    for folder in folders:
        for one in tests.found(folder, "commonsense").get("scores", ()):
            by_set.setdefault((one["set"], one["metric"]), []).append(one)
    return tuple(
        CommonsenseScore(**{**same[0], "value": float(np.mean([one["value"] for one in same]))})
        for same in by_set.values()
    )
