"""The audit of a whole study: every repeat as any set of runs, and sizes and settings against the study itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.config.files import load_run
from lockstep.config.study import StudySpec
from lockstep.models.registry import absolute, specify
from lockstep.models.spec import ModelSpec
from lockstep.study.audit import Audit, audit
from lockstep.study.audit_rules import FREE, NOTED, covers
from lockstep.study.audited_run import AuditedRun
from lockstep.study.match import amount_of, cost_on_meta
from lockstep.study.place import StudyPlace, seed_of
from lockstep.study.run_status import run_status
from lockstep.study.tune import sweep
from lockstep.training.run_folder import flatten

SEEDS = ("data_seed", "init_seed", "random_seed", "experiment_name")


@dataclass(frozen=True)
class StudyAudit:
    """One audit per repeat, and what only the study can tell."""

    repeats: tuple[Audit, ...]
    findings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def runs(self) -> tuple[AuditedRun, ...]:
        return tuple(run for repeat in self.repeats for run in repeat.runs)


def audit_study(place: StudyPlace, study: StudySpec) -> StudyAudit:
    """Compare what has been trained to its end; runs that diverged have none."""
    varies = (*study.varies, *study.tuned)
    repeats = []
    for data_seed, _ in study.seeds.pairs:
        folders = [place.run(name, data_seed) for name in study.contestants]
        finished = [folder for folder in folders if run_status(folder).status == "finished"]
        if finished:
            repeats.append(audit(finished, varies=varies))
    runs = [run for repeat in repeats for run in repeat.runs]
    findings = [f"{one.message}" for repeat in repeats for one in repeat.findings]
    findings += [*other_settings(study, runs), *other_seeds(study, runs), *other_sizes(study, runs)]
    findings += [*other_models(study, runs), *other_tuning(study, place, runs)]
    notes = dict.fromkeys(note for repeat in repeats for note in repeat.notes)
    return StudyAudit(tuple(repeats), tuple(findings), (*notes, *place.changes()))


def model_of(folder: Path) -> ModelSpec:
    """The model that a run trained."""
    model = load_run(folder / "config.yaml").model
    return specify(model.architecture, model.fields())


def contestant_of(run: AuditedRun) -> str:
    return run.folder.name.rpartition(".seed-")[0]


def other_settings(study: StudySpec, runs: Sequence[AuditedRun]) -> Iterator[str]:
    """Runs that were trained by other settings than the study states, as by a file that was edited since."""
    for run in runs:
        asked = flatten(study.run_of(contestant_of(run)).model_dump(mode="json"))
        for key, value in asked.items():
            free = covers((*FREE, *NOTED, *SEEDS, *study.tuned, "data.training_corpus", "data.source_corpus"), key)
            # The tokenizer of a prepared folder is stored as what it turned out to be.
            if free or covers(("tokenizer", "training.objective"), key):
                continue
            if run.config.get(key) != value:
                yield f"{key}: {run.config.get(key)} in {run.name}, but the study states {value}"


def other_models(study: StudySpec, runs: Sequence[AuditedRun]) -> Iterator[str]:
    """Runs of another architecture, or with other fields, than their contestant states."""
    for run in runs:
        section = study.contestants[contestant_of(run)]
        trained, stated = load_run(run.folder / "config.yaml").model, absolute(section.architecture)
        if trained.architecture != stated:
            yield f"model.architecture: {trained.architecture} in {run.name}, but the study states {stated}"
            continue
        model = specify(stated, trained.fields())
        for key, value in section.fields().items():
            if specify(stated, {**trained.fields(), key: value}) != model:
                yield f"model.{key}: {trained.fields().get(key)} in {run.name}, but the study states {value}"


def other_tuning(study: StudySpec, place: StudyPlace, runs: Sequence[AuditedRun]) -> Iterator[str]:
    """Runs with other settings than their contestant's sweep chose."""
    for run in runs if study.tuning is not None else ():
        chosen = sweep(study, contestant_of(run), place)
        best = {} if chosen.best is None else chosen.trials[chosen.best].settings
        for name, value in best.items():
            if run.config.get(f"training.{name}") != value:
                found = run.config.get(f"training.{name}")
                yield f"training.{name}: {found} in {run.name}, but its tuning chose {value}"


def other_seeds(study: StudySpec, runs: Sequence[AuditedRun]) -> Iterator[str]:
    for run in runs:
        pair = next((pair for pair in study.seeds.pairs if pair[0] == seed_of(run.folder)), None)
        found = (run.config.get("data_seed"), run.config.get("init_seed"))
        if pair is not None and found != pair:
            yield f"seeds: (data, init) {found} in {run.name}, but the study states {pair}"


def other_sizes(study: StudySpec, runs: Sequence[AuditedRun]) -> Iterator[str]:
    """Models that are larger or smaller than the study matched them to be."""
    for run in runs:
        wanted = study.wanted_of(contestant_of(run))
        if wanted is None:
            continue
        cost = cost_on_meta(model_of(run.folder), run.config["data.max_sequence_length"])
        amount = amount_of(cost, wanted.on)
        if abs(amount / wanted.target - 1) > wanted.tolerance:
            yield (
                f"{wanted.on}: {amount:,.0f} in {run.name}, but the study matches {wanted.target:,.0f} within"
                f" {wanted.tolerance:.2%}"
            )
        counted = run.facts(None).get("model_cost.non_embedding_parameters")
        if counted is not None and counted != cost.non_embedding_parameters:
            yield (
                f"model_cost.non_embedding_parameters: {counted:,} in the checkpoint of {run.name}, but"
                f" {cost.non_embedding_parameters:,} by its config.yaml"
            )
