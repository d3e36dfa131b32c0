"""Whether a comparison was fair: every run of a study, field by field, at one step.

Settings come from config.yaml, facts (tokens counted, hash of the token stream, digest of the corpus) from the
metadata of sound checkpoints. A difference that nobody declared is a finding, and one finding fails the audit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.study.audit_facts import compare_facts, note_tracks
from lockstep.study.audit_rules import check_varies
from lockstep.study.audit_settings import compare_settings
from lockstep.study.audited_run import AuditedRun, read_runs
from lockstep.study.consistency import inconsistencies, restated_configurations
from lockstep.study.differences import Finding, in_words


@dataclass(frozen=True, slots=True)
class Audit:
    """What was compared, and what was found."""

    runs: tuple[AuditedRun, ...]
    step: int | None
    """The step at which the runs are compared; None where they have none in common."""
    findings: tuple[Finding, ...]
    """Causes before their consequences."""
    notes: tuple[str, ...]
    """Differences that are allowed but worth saying."""

    @property
    def passed(self) -> bool:
        return not self.findings


def audit(paths: Sequence[Path], step: int | None = None, varies: Sequence[str] = ()) -> Audit:
    """Compare the runs at `paths`, which are run folders or folders that hold them.

    `step` is by default the newest at which every run has a sound checkpoint. `varies` names settings, or sections
    of them, that are meant to differ.
    """
    runs = read_runs(paths)
    check_varies(varies, runs)
    chosen = newest_common_step(runs) if step is None else step
    settings, setting_notes = compare_settings(runs, varies, chosen)
    facts, fact_notes = compare_facts(runs, varies, chosen, tuple(one.field for one in settings))
    findings = (*settings, *damage(runs), *absences(runs, chosen), *inconsistencies(runs), *facts)
    notes = (*setting_notes, *fact_notes, *note_tracks(runs, chosen), *restated_configurations(runs))
    return Audit(runs, chosen, findings, notes)


def newest_common_step(runs: Sequence[AuditedRun]) -> int | None:
    """The newest step at which every run has a sound checkpoint."""
    return max(set.intersection(*(set(run.checkpoints) for run in runs)), default=None)


def damage(runs: Sequence[AuditedRun]) -> list[Finding]:
    """Checkpoints that are not what their writer wrote."""
    return [
        Finding(f"checkpoint-{step}", {run.name: what}, f"checkpoint-{step} of {run.name} is damaged: {what}")
        for run in runs
        for step, what in run.damaged.items()
    ]


def absences(runs: Sequence[AuditedRun], step: int | None) -> list[Finding]:
    """Runs that cannot be compared at the step, with the steps that they do have."""
    steps = {run.name: list(run.checkpoints) for run in runs if step is None or step not in run.checkpoints}
    if not steps:
        return []
    said = "; ".join(f"{name} has {steps_in_words(own, list(steps.values()))}" for name, own in steps.items())
    where = "a step in common" if step is None else f"step {step}"
    return [Finding("checkpoints", steps, f"checkpoints: no sound one at {where}: {said}")]


def steps_in_words(steps: list[int], others: list[list[int]]) -> str:
    return in_words(steps, others).strip("[]") if steps else "none"
