"""Our accuracies beside published ones, where task and architecture are the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockstep.report.answers import TITLES, lengths_of, levels_of, rate, score_at, scores_of, tasks_of
from lockstep.report.published import PUBLISHED, same_length
from lockstep.report.results import Contestant, Results
from lockstep.report.wording import in_tokens, joined


@dataclass(frozen=True)
class Line:
    """One row of a table: ours, or a published one."""

    name: str
    source: str | None
    """None: ours."""
    cells: tuple[str | None, ...]
    """By length; None where there is no number."""


@dataclass(frozen=True)
class Beside:
    """A task and level with published numbers, over all lengths that anybody has."""

    title: str
    lengths: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]


CONSTRUCTED = {
    "needles": "Ours are of our own construction in the manner of RULER: compare how numbers fall with length",
    "babilong": "Ours are of our own construction after BABILong: compare how numbers fall with length",
}


def beside_published(results: Results) -> list[Beside]:
    """A table for each task and level that the study tested and somebody published, of the same architectures."""
    asked = [one for one in results.contestants if one.track == "causal"]
    tables = []
    for task in tasks_of(asked):
        for level in dict.fromkeys(one.level for one in PUBLISHED if one.task == task):
            entries = [one for one in asked if any(level in (None, score.level) for score in scores_of(one, task))]
            table = beside(task, level, entries)
            tables += [table] if table.lines else []
    return tables


def beside(task: str, level: str | None, entries: Sequence[Contestant]) -> Beside:
    """Contestants with a published namesake, each with all its namesakes below."""
    matches = {
        one.name: [
            row for row in PUBLISHED if (row.task, row.level) == (task, level) and one.architecture in row.architectures
        ]
        for one in entries
    }
    matched = [one for one in entries if matches[one.name]]
    rows = [row for one in matched for row in matches[one.name]]
    lengths = merged_lengths([*lengths_of(matched, task), *(length for row in rows for length in row.percent)])
    lines = []
    for one in matched:
        lines.append(Line(one.name, None, tuple(own_cell(one, task, level, length) for length in lengths)))
        for row in matches[one.name]:
            numbers = [row.at(length) for length in lengths]
            cells = tuple(None if number is None else as_printed(number) for number in numbers)
            lines.append(Line(row.model, row.source.name, cells))
    sources = dict.fromkeys(row.source for row in rows)
    told = [f"{source.name}: {source.models}" for source in sources]
    title = f"{TITLES.get(task, task)}, {joined(levels_of(matched, task)) if level is None else level}"
    return Beside(title, tuple(in_tokens(length) for length in lengths), tuple(lines), (CONSTRUCTED[task], *told))


def as_printed(number: float) -> str:
    """Tables have a decimal, what was read off a figure has none."""
    return f"{number:.1f}" if isinstance(number, float) else str(number)


def merged_lengths(lengths: Iterable[int]) -> list[int]:
    """In order, those that are about the same once."""
    kept: list[int] = []
    for length in sorted(set(lengths)):
        if not kept or not same_length(length, kept[-1]):
            kept.append(length)
    return kept


def own_cell(one: Contestant, task: str, level: str | None, length: int) -> str | None:
    """83.2 (80.1 to 86.0), in percent."""
    there = next((at for at in lengths_of([one], task) if same_length(at, length)), None)
    score = None if there is None else score_at(one, task, there, level)
    if score is None:
        return None
    found = rate(score)
    return f"{100 * found.accuracy:.1f} ({100 * found.low:.1f} to {100 * found.high:.1f})"
