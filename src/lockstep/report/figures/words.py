"""Captions: what a figure shows, said with its numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lockstep.report.results import Contestant
from lockstep.report.wording import joined


def amount(number: float) -> str:
    """Three figures that count, such as 0.00231, 2.31, 231 or 23,100."""
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.3g}" if abs(number) >= 1e-4 or number == 0 else f"{number:.2e}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def gaps(contestants: Sequence[Contestant], present: Collection[str]) -> str:
    """Who is not in the picture and why, and whose runs diverged; empty where nothing is amiss."""
    absent = [f"{one.name} ({standing(one)})" for one in contestants if one.name not in present]
    said = [f"No number for {joined(absent)}."] if absent else []
    for one in contestants:
        lost = [run for run in one.runs if run.status == "diverged"]
        if lost and one.name in present:
            said.append(f"Of {one.name}, {len(lost)} of {plural(len(one.runs), 'run')} diverged.")
    return " ".join(said)


def standing(one: Contestant) -> str:
    """How far its runs have come."""
    ways = [run.status for run in one.runs]
    if "diverged" in ways:
        return f"{ways.count('diverged')} of {plural(len(ways), 'run')} diverged"
    return "waiting" if set(ways) <= {"waiting"} else "running" if "finished" not in ways else "not measured"


def sentences(*parts: str) -> str:
    return " ".join(part for part in parts if part)
