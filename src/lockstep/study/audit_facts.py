"""Facts of the checkpoints' metadata, compared over all runs at one step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lockstep.study.audit_rules import (
    CAUSES,
    NOTED_FACTS,
    PLAN_FACT,
    STEP_FACTS,
    STREAM_FACT,
    SUPERVISED,
    TOKENIZER_FACT,
    covers,
    excuses,
)
from lockstep.study.audit_settings import by_track
from lockstep.study.audited_run import AuditedRun
from lockstep.study.differences import Finding, difference

Runs = Sequence[AuditedRun]


def compare_facts(
    runs: Runs, varies: Sequence[str], step: int | None, differing: Sequence[str]
) -> tuple[list[Finding], list[str]]:
    """Facts that differ, each with those of the `differing` settings that can explain it; and notes."""
    findings: list[Finding] = []
    notes: list[str] = []
    present = [run for run in runs if run.facts(step)]
    for fact, causes in CAUSES.items():
        if step is None and fact in STEP_FACTS:
            continue
        reasons = [key for key in differing if covers(causes, key)]
        for group in _comparable(fact, present, step):
            found = _differences(fact, _split(group, excuses(fact, varies, runs)), step)
            findings += [_with_reasons(one, reasons) for one in found]
            if not found:
                excused = _differences(fact, [group], step)
                notes += [f"{one.message} (follows from what is declared to vary)" for one in excused]
    if step is not None:
        findings += _differences(SUPERVISED, _same_targets(present, step), step)
    return findings, notes + _circumstances(present, step)


def note_tracks(runs: Runs, step: int | None) -> list[str]:
    """What cannot be compared between causal and masked runs."""
    tracks = by_track(runs)
    if len(tracks) < 2:
        return []
    causal, masked = (", ".join(run.name for run in track) for track in tracks)
    notes = [f"tracks: masked ({masked}) and causal ({causal}); their losses are never ranked against each other"]
    if all(_fingerprints(track, step) for track in tracks) and not _share_a_tokenizer(tracks, step):
        notes.append(
            f"{TOKENIZER_FACT}: the masked runs ({masked}) have another tokenizer than the causal ones ({causal});"
            " token streams cannot be compared between the two tracks"
        )
    return notes


def _comparable(fact: str, runs: Runs, step: int | None) -> list[Runs]:
    """The groups within which a fact must be equal; between tracks, tokenizers may differ and then streams do."""
    tracks = by_track(runs)
    follows = fact in (STREAM_FACT, PLAN_FACT)
    if fact == TOKENIZER_FACT or (follows and not _share_a_tokenizer(tracks, step)):
        return list(tracks)
    return [runs]


def _share_a_tokenizer(tracks: Sequence[Runs], step: int | None) -> bool:
    return bool(tracks) and bool(set.intersection(*(_fingerprints(track, step) for track in tracks)))


def _fingerprints(runs: Runs, step: int | None) -> set[str]:
    found = (run.facts(step).get(TOKENIZER_FACT) for run in runs)
    return {fingerprint for fingerprint in found if isinstance(fingerprint, str)}


def _same_targets(runs: Runs, step: int) -> list[Runs]:
    """Runs that hid the same tokens: masks are a function of stream, tokenizer, probability and seed."""
    facts = [run.facts(step) for run in runs]
    keys = [
        (run.track, fact.get(STREAM_FACT), fact.get(TOKENIZER_FACT), run.config.get("data_seed"), _probability(run))
        for run, fact in zip(runs, facts, strict=True)
    ]
    return _partition(runs, keys)


def _probability(run: AuditedRun) -> Any:
    return run.config.get("training.mlm_probability") if run.track == "masked" else None


def _split(runs: Runs, settings: Sequence[str]) -> list[Runs]:
    """Runs with equal values of the given settings together."""
    return _partition(runs, [[run.config.get(key) for key in settings] for run in runs])


def _partition(runs: Runs, keys: Iterable[Any]) -> list[Runs]:
    parts: dict[str, list[AuditedRun]] = {}
    for run, key in zip(runs, keys, strict=True):
        parts.setdefault(repr(key), []).append(run)  # values of a user's YAML need not be hashable
    return list(parts.values())


def _differences(fact: str, groups: Sequence[Runs], step: int | None) -> list[Finding]:
    found = (difference(fact, {run.name: run.facts(step).get(fact) for run in group}) for group in groups)
    return [one for one in found if one is not None]


def _with_reasons(found: Finding, reasons: Sequence[str]) -> Finding:
    if not reasons:
        return found
    verb = "differs" if len(reasons) == 1 else "differ"
    return Finding(found.field, found.values, f"{found.message} ({', '.join(reasons)} {verb})")


def _circumstances(runs: Runs, step: int | None) -> list[str]:
    """Notes on machines, versions and code."""
    keys = {key: None for run in runs for key in run.facts(step) if covers(NOTED_FACTS, key)}
    found = (difference(key, {run.name: run.facts(step).get(key) for run in runs}) for key in keys)
    return [f"{one.message} (allowed to differ)" for one in found if one is not None]
