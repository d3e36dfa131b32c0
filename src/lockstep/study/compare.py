"""A whole comparison: plan, tune, train, measure, report; each part goes on from where it was left."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from lockstep.config.files import load_run, load_study
from lockstep.config.study import StudySpec
from lockstep.errors import UserError
from lockstep.progress import showing
from lockstep.report.results import Measurements, Results, Sweep
from lockstep.report.write import write_report
from lockstep.study.collect import collect
from lockstep.study.contestants import Contestant
from lockstep.study.flags import QUICK
from lockstep.study.measure import measure_run
from lockstep.study.place import StudyPlace
from lockstep.study.plan import StudyPlan, plan_study, plan_table
from lockstep.study.subject import Subject
from lockstep.study.train import fit_together, train_runs
from lockstep.study.tune import sweep, tune, tuned_settings
from lockstep.training.checkpoint import checkpoint_steps
from lockstep.training.context import make_context
from lockstep.training.distribution import World, find_device
from lockstep.training.run_folder import check_config

Tell = Callable[[str], None]
"""Told what is being done, in a line."""


def silently(line: str) -> None:
    """For those who do not want to be told."""


def compare(
    study: StudySpec | str | Path | None = None, output_dir: str | Path | None = None, tell: Tell = silently
) -> tuple[Results, Measurements]:
    """Run a study, or go on with it: tune, train, measure and report; the results that the report is made from.

    The study is a specification or its file, by default the quick study; its folder is output/<study_name> by default.
    """
    spec = study if isinstance(study, StudySpec) else load_study(QUICK if study is None else Path(study))
    place = StudyPlace(Path(output_dir or spec.folder))
    plan, together = begin(spec, place, tell)
    tell(plan_table(plan))
    found = tuned([one.contestant for one in plan.contestants], place, together, tell)
    for number, seeds in enumerate(spec.seeds.pairs, start=1):
        how = "side by side" if together else "one after another"
        tell(f"training, repeat {number} of {len(spec.seeds.pairs)}: {len(found)} contestants {how}")
        runs = [(one.run(seeds, settings), place.run(one.name, seeds[0])) for one, settings in found]
        train_runs(runs, together)
    tell(f"measuring {len(found) * len(spec.seeds.pairs)} runs")
    measure_all([one for one, _ in found], place)
    tell("reporting")
    return report(place.folder)


def tune_study(study: StudySpec, folder: Path, tell: Tell = silently) -> list[Sweep]:
    """Only the sweep; `compare` goes on from it."""
    if study.tuning is None:
        raise UserError("the study names nothing to tune; add a section such as tuning: {learning_rate: [1e-3, 2e-3]}")
    place = StudyPlace(folder)
    plan, together = begin(study, place, tell)
    tuned([one.contestant for one in plan.contestants], place, together, tell)
    return [sweep(study, name, place) for name in study.contestants]


def begin(study: StudySpec, place: StudyPlace, tell: Tell) -> tuple[StudyPlan, bool]:
    """The plan, once the study is known to be possible and its folder to be its own; nothing is written before that."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a study is compared by one process; start it without torchrun")
    tell("planning")
    plan = plan_study(study)
    for one in plan.contestants:
        check_runs(one.contestant, place)
    place.store(study)
    return plan, fit_together(plan)


def check_runs(contestant: Contestant, place: StudyPlace) -> None:
    """Refuse to go on with runs that were begun by other settings."""
    study = contestant.study
    for seeds in study.seeds.pairs:
        folder = place.run(contestant.name, seeds[0])
        settings = tuned_settings(study, contestant.name, place)
        if settings is not None and checkpoint_steps(folder):
            check_config(folder, make_context(contestant.run(seeds, settings), folder, World()).resolved)


def tuned(
    contestants: Sequence[Contestant], place: StudyPlace, together: bool, tell: Tell
) -> list[tuple[Contestant, dict[str, float]]]:
    """Who competes, with the settings that its sweep chose; without a sweep there are none."""
    study = contestants[0].study
    if study.tuning is not None:
        tell(f"tuning: {len(study.tuning.trials)} trials for each of {len(contestants)} contestants")
        tune(contestants, place, together)
    found = []
    for one in contestants:
        settings = tuned_settings(study, one.name, place)
        if settings is None:
            tell(f"{one.name} diverged in every trial of its tuning and does not compete")
        else:
            found.append((one, settings))
    return found


def measure_all(found: Sequence[Contestant], place: StudyPlace) -> None:
    """Every run of every contestant; those that diverged have nothing to measure."""
    if not found:
        return
    study = found[0].study
    device = find_device(study.training.device, World())
    # As `lockstep evaluate` scores, whatever training in the same process had asked for.
    torch.set_float32_matmul_precision("highest")
    work = [(one, number, data_seed) for one in found for number, (data_seed, _) in enumerate(study.seeds.pairs)]
    with showing("measuring", "steps", total=len(work)) as progress:
        for one, number, data_seed in work:
            folder = place.run(one.name, data_seed)
            run = load_run(folder / "config.yaml")
            subject = Subject(run, folder, one.prepared, device, study.measurements, study.evaluate)
            measure_run(subject, first=number == 0)
            progress.add(1)


def report(folder: Path) -> tuple[Results, Measurements]:
    """The report of a study as it stands, also while it runs."""
    results, measured = collect(folder)
    write_report(results, measured, folder)
    return results, measured
