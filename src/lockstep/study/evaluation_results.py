"""What the tests of a study found, over all repeats of a contestant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.config.tasks import TASKS
from lockstep.report.results import AtContext, Band, CommonsenseScore, TaskRun, TaskScore
from lockstep.study.run_results import found_in

Repeats = Mapping[int, Path]
"""Run folders by their data seed."""
Entry = Mapping[str, Any]


def task_scores(repeats: Repeats) -> tuple[TaskScore, ...]:
    """Level by level and length by length, as they were tested."""
    return tuple(score for task in TASKS for score in scores_of(task, repeats))


def scores_of(task: str, repeats: Repeats) -> Iterator[TaskScore]:
    cells: dict[tuple[str, int], dict[int, Entry]] = {}
    for seed, folder in repeats.items():
        for one in found_in(folder, task).get("scores", ()):
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


def contexts(folders: Sequence[Path]) -> tuple[AtContext, ...]:
    """Means over repeats, of the contexts that all of them were given."""
    by_context: dict[int, list[Entry]] = {}
    for folder in folders:
        for one in found_in(folder, "beyond").get("contexts", ()):
            by_context.setdefault(one["context"], []).append(one)
    found = []
    for context, same in sorted(by_context.items()):
        if any(one["loss"] is None for one in same):
            continue  # it was not finite
        loss = float(np.mean([one["loss"] for one in same]))
        tokens = sum(one["tokens"] for one in same)
        found.append(AtContext(context=context, tokens=tokens, loss=loss, perplexity=float(np.exp(loss))))
    return tuple(found)


def commonsense(folders: Sequence[Path]) -> tuple[CommonsenseScore, ...]:
    """Means over repeats; the error is that of one repeat, over questions: all repeats were asked the same."""
    by_set: dict[tuple[str, str], list[Entry]] = {}
    for folder in folders:
        for one in found_in(folder, "commonsense").get("scores", ()):
            by_set.setdefault((one["set"], one["metric"]), []).append(one)
    return tuple(
        CommonsenseScore(**{**same[0], "value": float(np.mean([one["value"] for one in same]))})
        for same in by_set.values()
    )
