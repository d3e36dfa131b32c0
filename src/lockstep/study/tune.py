"""Tuning: every contestant is given as many trials, of as many tokens, and the whole sweep is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.config.run import RunSpec
from lockstep.config.study import StudySpec
from lockstep.report.results import Sweep, Trial
from lockstep.study.contestants import Contestant
from lockstep.study.place import StudyPlace
from lockstep.study.run_status import records, run_status
from lockstep.study.train import train_runs
from lockstep.tables import aligned


def tune(contestants: Sequence[Contestant], place: StudyPlace, together: bool) -> None:
    """Run every trial that has not been run; trial by trial, so that all contestants are equally far."""
    study = contestants[0].study
    for number in range(0 if study.tuning is None else len(study.tuning.trials)):
        runs = [(trial_run(one, number), place.trial(one.name, number)) for one in contestants]
        train_runs(runs, together)


def trial_run(contestant: Contestant, number: int) -> RunSpec:
    """As the contestant's runs, but for what is tried, its length and its seeds; nothing is branched off."""
    tuning = contestant.study.tuning
    assert tuning is not None
    tried = {f"training.{name}": value for name, value in tuning.trials[number].items()}
    shorter: dict[str, Any] = {"training.cooled_at": (), "training.checkpoint_schedule": ()}
    if tuning.train_steps is not None:
        shorter["training.train_steps"] = tuning.train_steps
    return contestant.run((tuning.seed, tuning.seed), {**tried, **shorter})


def sweep(study: StudySpec, contestant: str, place: StudyPlace) -> Sweep:
    """All trials of a contestant, as far as they have come."""
    assert study.tuning is not None
    found = [trial(settings, place.trial(contestant, n)) for n, settings in enumerate(study.tuning.trials)]
    losses = {number: one.loss for number, one in enumerate(found) if one.loss is not None}
    settled = all(one.status in ("finished", "diverged") for one in found)
    best = min(losses, key=losses.__getitem__) if losses and settled else None
    tokens = max((tokens_of(place.trial(contestant, number)) for number in range(len(found))), default=0)
    edges = () if best is None else at_edge(study.tuning.grid, found[best].settings)
    return Sweep(contestant=contestant, tokens=tokens, trials=tuple(found), best=best, at_edge=edges)


def trial(settings: dict[str, float], folder: Path) -> Trial:
    """One trial: its loss on the validation split after the last step."""
    status = run_status(folder).status
    scored = [record["evaluation"]["loss"] for record in records(folder) if "evaluation" in record]
    return Trial(settings=settings, loss=scored[-1] if status == "finished" else None, status=status)


def tokens_of(folder: Path) -> int:
    return max((record.get("tokens_processed", 0) for record in records(folder)), default=0)


def at_edge(grid: dict[str, tuple[float, ...]], chosen: dict[str, float]) -> tuple[str, ...]:
    """Settings whose best value is the smallest or the largest that was tried: a better one may lie beyond."""
    return tuple(name for name, values in grid.items() if chosen[name] in (values[0], values[-1]))


def never_tuned(found: Sweep) -> bool:
    """Whether every trial diverged: then there is nothing to compete with, which is a result too."""
    return all(one.status == "diverged" for one in found.trials)


def tuned_settings(study: StudySpec, contestant: str, place: StudyPlace) -> dict[str, float] | None:
    """What the sweep chose, as dotted keys: nothing where nothing is tuned, and None where nothing can be chosen."""
    if study.tuning is None:
        return {}
    found = sweep(study, contestant, place)
    if found.best is None:
        return None
    return {f"training.{name}": value for name, value in found.trials[found.best].settings.items()}


def sweep_table(sweeps: Sequence[Sweep]) -> str:
    """Every trial as aligned text, the chosen one marked."""
    rows = [["", *sweeps[0].trials[0].settings, "loss", ""]]
    for one in sweeps:
        for number, tried in enumerate(one.trials):
            mark = "" if number != one.best else "best, at the edge: provisional" if one.at_edge else "best"
            said = tried.status if tried.loss is None else f"{tried.loss:.4f}"
            rows.append([one.contestant, *(f"{value:g}" for value in tried.settings.values()), said, mark])
    return "\n".join(aligned(rows))
