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
from lockstep.study.measure import Subject, measure_run
from lockstep.study.place import StudyPlace
from lockstep.study.plan import StudyPlan, plan_study, plan_table
from lockstep.study.train import fit_together, train_runs
from lockstep.study.tune import sweep, tune, tuned_settings
from lockstep.training.distribution import World, find_device

Tell = Callable[[str], None]
"""Told what is being done, in a line."""


def compare(study: StudySpec, folder: Path, tell: Tell = lambda line: None) -> tuple[Results, Measurements]:
    """Everything that is missing in `folder`, and then the report."""
    plan, together = begin(study, folder, tell)
    place = StudyPlace(folder)
    found = [one.contestant for one in plan.contestants]
    tell(plan_table(plan))
    tune_all(found, place, together, tell)
    chosen = {one.name: tuned_settings(study, one.name, place) for one in found}
    for name in [name for name, settings in chosen.items() if settings is None]:
        tell(f"{name} diverged in every trial of its tuning and does not compete")
    found = [one for one in found if chosen[one.name] is not None]
    for number, (data_seed, init_seed) in enumerate(study.seeds.pairs, start=1):
        how = "side by side" if together else "one after another"
        tell(f"training, repeat {number} of {len(study.seeds.pairs)}: {len(found)} contestants {how}")
        seeds = (data_seed, init_seed)
        runs = [(one.run(seeds, chosen[one.name]), place.run(one.name, data_seed)) for one in found]
        train_runs(runs, together)
    tell("measuring")
    measure_all(found, place)
    tell("reporting")
    return report(folder)


def compare_file(
    study: StudySpec | str | Path | None = None, output_dir: str | Path | None = None
) -> tuple[Results, Measurements]:
    """`lockstep.compare`: a study, or its file, or by default the quick study; the results behind the report."""
    spec = study if isinstance(study, StudySpec) else load_study(QUICK if study is None else Path(study))
    return compare(spec, Path(output_dir or spec.folder))


def tune_study(study: StudySpec, folder: Path, tell: Tell = lambda line: None) -> list[Sweep]:
    """Only the sweep; `compare` goes on from it."""
    if study.tuning is None:
        raise UserError("the study names nothing to tune; add a section such as tuning: {learning_rate: [1e-3, 2e-3]}")
    plan, together = begin(study, folder, tell)
    place = StudyPlace(folder)
    tune_all([one.contestant for one in plan.contestants], place, together, tell)
    return [sweep(study, name, place) for name in study.contestants]


def begin(study: StudySpec, folder: Path, tell: Tell) -> tuple[StudyPlan, bool]:
    """The plan, once the study is known to be possible and its folder to be its own."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a study is compared by one process; start it without torchrun")
    tell("planning")
    plan = plan_study(study)
    StudyPlace(folder).store(study)
    return plan, fit_together(plan)


def tune_all(found: Sequence[Contestant], place: StudyPlace, together: bool, tell: Tell) -> None:
    tuning = found[0].study.tuning
    if tuning is not None:
        tell(f"tuning: {len(tuning.trials)} trials for each of {len(found)} contestants")
        tune(found, place, together)


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
            measure_run(Subject(run, folder, one.prepared, device, study.measurements), first=number == 0)
            progress.add(1)


def report(folder: Path) -> tuple[Results, Measurements]:
    """The report of a study as it stands, also while it runs."""
    results, measured = collect(folder)
    write_report(results, measured, folder)
    return results, measured
