"""Settings of config.yaml, compared over all runs."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.study.audit_rules import ADDRESSES, FREE, NOTED, TRACK_FIELDS, covers
from lockstep.study.audited_run import AuditedRun
from lockstep.study.differences import Finding, difference


def compare_settings(
    runs: Sequence[AuditedRun], varies: Sequence[str], step: int | None
) -> tuple[list[Finding], list[str]]:
    """Differences that nobody declared, and notes on those that are allowed."""
    findings: list[Finding] = []
    notes: list[str] = []
    keys = {key: None for run in runs for key in run.config if not covers(FREE, key)}
    for key in keys:
        for group in by_track(runs) if covers(TRACK_FIELDS, key) else [runs]:
            found = difference(key, {run.name: run.config.get(key) for run in group})
            if found is None:
                continue
            permission = why_allowed(key, group, varies, step)
            if permission is None:
                findings.append(found)
            else:
                notes.append(f"{found.message} ({permission})")
    return findings, notes


def by_track(runs: Sequence[AuditedRun]) -> list[list[AuditedRun]]:
    """Causal runs and masked runs, each where there are any."""
    tracks = ([run for run in runs if run.track == track] for track in ("causal", "masked"))
    return [track for track in tracks if track]


def why_allowed(key: str, runs: Sequence[AuditedRun], varies: Sequence[str], step: int | None) -> str | None:
    """Why a setting may differ between `runs`, if it may."""
    if covers(varies, key):
        return "declared to vary"
    if covers(NOTED, key):
        return "allowed to differ"
    # The same text may lie in another place; what was read is proved by its digest.
    proof = ADDRESSES.get(key)
    if proof is not None:
        proofs = {run.facts(step).get(proof) for run in runs}
        if len(proofs) == 1 and None not in proofs:
            return f"the same content by its {proof}"
    return None
