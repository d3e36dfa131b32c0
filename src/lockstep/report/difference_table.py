"""Differences as the page lays them out: one table for every baseline that a reader may choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.report.findings import DifferenceRow, difference_rows
from lockstep.report.outcome import HIGHER_IS_BETTER, compared
from lockstep.report.results import Measurements, Results, StudyFacts
from lockstep.report.wording import amount_of, change_of, duration, joined, percent, times
from lockstep.tables import in_bytes, in_short


@dataclass(frozen=True)
class Cell:
    """One number of the table."""

    text: str
    value: float | None = None
    """What the column is sorted by."""
    notes: tuple[str, ...] = ()
    tone: str = ""
    """better or worse, where that can be told."""


SCORES = {"bits_per_byte": "Bits per byte", "perplexity": "Perplexity", "accuracy": "Accuracy", "loss": "Loss, nats"}
COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    "training_tokens_per_second": ("Training speed", lambda rate: f"{in_short(rate)} tokens/s"),
    "decode_seconds": ("Decode time", duration),
    "prefill_seconds": ("Prefill time", duration),
    "decode_peak_bytes": ("Decode memory", in_bytes),
    "training_peak_bytes": ("Training memory", in_bytes),
    "state_bytes": ("State", in_bytes),
    "parameters": ("Parameters", in_short),
    "training_flops_per_token": ("FLOPs per token", in_short),
}


def difference_tables(results: Results, measurements: Measurements) -> Iterable[dict[str, Any]]:
    """One for every contestant that somebody can be compared with."""
    for one in results.contestants:
        rows = difference_rows(results, measurements, one.name)
        bases = {row.baseline for row in rows if row.baseline is not None}
        kept = [row for row in rows if row.baseline is not None or row.name in bases]
        if one.name not in bases:
            continue
        columns = [name for name in (*SCORES, *COSTS) if any(getattr(row, name) is not None for row in kept)]
        primary = results.study.primary
        columns.sort(key=lambda name: name != primary)
        yield {
            "baseline": one.name,
            "note": table_note(rows, kept),
            "heads": [SCORES[name] if name in SCORES else COSTS[name][0] for name in columns],
            "rows": [
                {
                    "contestant": row.name,
                    "against": "baseline" if row.baseline is None else "" if row.baseline == one.name else row.baseline,
                    "cells": [cell(results, row, name) for name in columns],
                }
                for row in kept
            ],
        }


def first_baseline(study: StudyFacts, tables: Sequence[dict[str, Any]]) -> str | None:
    """The study's, unless nobody can be compared with it."""
    names = [table["baseline"] for table in tables]
    return study.baseline if study.baseline in names else next(iter(names), None)


def table_note(rows: Sequence[DifferenceRow], kept: Sequence[DifferenceRow]) -> str:
    """Where the lengths are from, and who is left out."""
    told = []
    lengths = sorted({row.length for row in kept if row.length is not None})
    states = sorted({row.state_length for row in kept if row.state_length is not None})
    if lengths:
        told.append(f"Decoding and prefill are those after {joined([f'{at:,}' for at in lengths])} tokens.")
    if states:
        told.append(f"States are those at {joined([f'{at:,}' for at in states])} tokens.")
    apart = [row.name for row in rows if row not in kept]
    if apart:
        told.append(f"Not of a group with it, and so not compared: {joined(apart)}.")
    return " ".join(told)


def cell(results: Results, row: DifferenceRow, name: str) -> Cell:
    """A signed difference, with the contestant's own number beneath it."""
    change = getattr(row, name)
    if change is None:
        return Cell("—")
    own = amount_of(name, change.value) if name in SCORES else COSTS[name][1](change.value)
    if row.baseline is None:
        return Cell(own, 0.0)
    if change.difference is None or (name in COSTS and change.ratio is None):
        return Cell("—", notes=(own,))
    if name in COSTS:
        return Cell(share_of_baseline(change.ratio), change.ratio - 1, (own,))
    pair = compared(results, name, row.name, row.baseline)
    if pair is None:
        return Cell("—", notes=(own,))
    # One decision per pair, by the metric that it was corrected for; the others are told with their intervals.
    decides, fair = pair.p_adjusted is not None, results.audit is not None and results.audit.passed
    tone = ""
    if decides and fair and pair.separable and pair.kind == "seeds":
        tone = "better" if (change.difference > 0) == (name in HIGHER_IS_BETTER) else "worse"
    reach = "no interval" if pair.low is None or pair.high is None else _reach(name, pair.low, pair.high)
    apart = "not separable (Holm)" if decides and not pair.separable else ""
    notes = tuple(note for note in (own, reach, apart) if note)
    return Cell(change_of(name, change.difference), change.difference, notes, tone)


def share_of_baseline(ratio: float) -> str:
    """In percent, or how many times less where nearly nothing is left."""
    return f"{times(1 / ratio)} times less" if 0 < ratio < 0.01 else percent(ratio - 1)


def _reach(metric: str, low: float, high: float) -> str:
    return f"{change_of(metric, low)} to {change_of(metric, high)}".replace(" points to", " to")
