"""Results of a study, gathered from its folder alone, also while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.config.files import read_yaml
from lockstep.config.study import StudySpec
from lockstep.durable import whole_file
from lockstep.errors import UserError
from lockstep.evaluation import detail
from lockstep.report.results import (
    AtLength,
    AuditResult,
    Bucket,
    Contestant,
    Measurements,
    Picture,
    Results,
    Sample,
    Score,
    StudyFacts,
)
from lockstep.study.clocks import measured_of, trained_on
from lockstep.study.comparisons import PRIMARY, DocumentSums, Metric, Scored, compare_all
from lockstep.study.contestants import group_of
from lockstep.study.evaluation_results import Tests, commonsense, contexts, positions, task_scores
from lockstep.study.match import cost_on_meta
from lockstep.study.place import MEASURED, RESULTS, StudyPlace
from lockstep.study.plan import CONTEXTS, matched_in_words, state_after
from lockstep.study.run_results import found_in, read_run_result
from lockstep.study.run_status import run_status
from lockstep.study.scaling import fits
from lockstep.study.study_audit import StudyAudit, audit_study, model_of
from lockstep.study.tune import never_tuned, sweep
from lockstep.training.run_folder import flatten

NOT_BEGUN, NEVER_TUNED = "has not begun", "diverged in every trial of its tuning"
SAME_TEXT = 1.01
"""How much more text one contestant may be scored on: a split's first token, which may be long, is not predicted."""


def collect(folder: Path) -> tuple[Results, Measurements]:
    """What is known now, written to results.json and measured.json as well."""
    place = StudyPlace(folder)
    study = place.read()
    begun = [name for name in study.contestants if first_begun(study, name, place) is not None]
    if not begun:
        raise UserError(f"{folder}: no run has a checkpoint yet; nothing can be said")
    contestants = tuple(contestant(study, name, place) for name in begun)
    audited = audit_study(place, study)
    audited = replace(audited, findings=(*audited.findings, *other_texts(contestants)))
    passed = audited.passed and bool(audited.repeats)
    results = Results(
        study=facts(study, place, contestants),
        contestants=contestants,
        comparisons=tuple(comparisons(study, place, contestants)) if passed else (),
        sweeps=tuple(sweep(study, name, place) for name in study.contestants) if study.tuning else (),
        fits=tuple(fits(contestants)) if passed else (),
        audit=audit_result(audited) if audited.repeats else None,
    )
    folders = {name: [place.run(name, seed) for seed, _ in study.seeds.pairs] for name in begun}
    measured = Measurements(contestants={name: measured_of(runs) for name, runs in folders.items()})
    for name, record in ((RESULTS, results), (MEASURED, measured)):
        whole_file(folder / name, record.model_dump_json(indent=1) + "\n")
    return results, measured


def first_begun(study: StudySpec, name: str, place: StudyPlace) -> Path | None:
    """The first run of a contestant that can say something."""
    folders = (place.run(name, seed) for seed, _ in study.seeds.pairs)
    return next((one for one in folders if (one / "config.yaml").exists()), None)


def contestant(study: StudySpec, name: str, place: StudyPlace) -> Contestant:
    folder = first_begun(study, name, place)
    assert folder is not None
    spec, length = model_of(folder), study.data.max_sequence_length
    cost = cost_on_meta(spec, length)
    runs = tuple(read_run_result(place.run(name, data), data, init, place.folder) for data, init in study.seeds.pairs)
    folders = [place.run(name, seed) for seed, _ in study.seeds.pairs]
    states = {after: state_after(spec, after) for after in sorted({length, *CONTEXTS})}
    samples, tests = found_in(folders[0], "samples"), Tests.of(study)
    return Contestant(
        name=name,
        architecture=study.contestants[name].architecture,
        track="causal" if spec.causal else "masked",
        group=group_of(study, name, spec.causal),
        model=spec.model_dump(mode="json"),
        settings=own_settings(study, name, folder),
        parameters=cost.parameters,
        non_embedding_parameters=cost.non_embedding_parameters,
        training_flops_per_token=cost.training_flops,
        decoding_flops_per_token=cost.decoding_flops if spec.causal else None,
        state_bytes={after: state for after, state in states.items() if state is not None},
        runs=runs,
        positions=buckets(folders, "positions"),
        repeats=buckets(folders, "repeats"),
        lengths=lengths(folders),
        beyond=positions(tests, folders),
        contexts=contexts(tests, folders),
        tasks=task_scores(tests, {seed: place.run(name, seed) for seed, _ in study.seeds.pairs}),
        commonsense=commonsense(tests, folders),
        memory=found_in(folders[0], "memory") or None,
        samples=tuple(Sample(**one) for one in samples.get("samples", ())),
        pictures=tuple(Picture(**one) for one in found_in(folders[0], "pictures").get("pictures", ())),
    )


def own_settings(study: StudySpec, name: str, folder: Path) -> dict[str, Any]:
    """What was tuned for a contestant, and what it states besides its model."""
    trained = flatten(read_yaml(folder / "config.yaml"))
    keys = (*study.tuned, *study.contestants[name].settings)
    return {key: trained[key] for key in keys if key in trained}


def buckets(folders: Sequence[Path], name: str) -> tuple[Bucket, ...]:
    """One breakdown over all repeats, the tokens of all of them together."""
    every = [
        [detail.Bucket(one["first"], one["last"], one["tokens"], one["tokens"] * one["loss"]) for one in found]
        for folder in folders
        if (found := found_in(folder, "test").get(name))
    ]
    return tuple(Bucket.model_validate(one.as_dict()) for one in detail.joined(every))


def lengths(folders: Sequence[Path]) -> tuple[AtLength, ...]:
    """Means over repeats, at the lengths that all of them were scored at."""
    by_length: dict[int, list[Mapping[str, Any]]] = {}
    for folder in folders:
        for one in found_in(folder, "lengths").get("lengths", ()):
            by_length.setdefault(one["length"], []).append(one)
    found = []
    for length, scores in sorted(by_length.items()):
        loss = float(np.mean([one["loss"] for one in scores]))
        bits = [one["bits_per_byte"] for one in scores]
        mean_bits = None if None in bits else float(np.mean(bits))
        found.append(AtLength(length=length, loss=loss, perplexity=float(np.exp(loss)), bits_per_byte=mean_bits))
    return tuple(found)


def comparisons(study: StudySpec, place: StudyPlace, found: Sequence[Contestant]) -> list[Any]:
    """All pairs, group by group; only repeats that are finished take part."""
    every = []
    for group in dict.fromkeys(one.group for one in found):
        by_share: dict[float, list[Scored]] = {}
        for one in (one for one in found if one.group == group):
            for share in dict.fromkeys(point.share for run in one.runs for point in run.cooled):
                by_share.setdefault(share, []).append(scored(one, share, place))
        members = [one for one in found if one.group == group]
        every += compare_all(by_share, study.compared_with, ranked_by(members))
    return every


def ranked_by(group: Sequence[Contestant]) -> Metric:
    """The primary metric, or perplexity where the track is masked or bytes are unknown."""
    scores = [point.score for one in group for run in one.runs for point in run.cooled]
    known = all(score.bits_per_byte is not None for score in scores)
    return PRIMARY if known and group[0].track == "causal" else "perplexity"


def other_texts(contestants: Sequence[Contestant]) -> Iterator[str]:
    """Groups whose members were scored on different text, as happens where tokenizers differ and not all is scored."""
    for group in dict.fromkeys(one.group for one in contestants):
        scored = {
            one.name: point.score.bytes
            for one in contestants
            if one.group == group
            for run in one.runs
            for point in run.cooled
        }
        if scored and max(scored.values()) > SAME_TEXT * max(1, min(scored.values())):
            told = ", ".join(f"{amount:,} of {name}" for name, amount in scored.items())
            yield f"measurements.sequences: bytes of the test split that were scored differ: {told}; score all of it"


def scored(contestant: Contestant, share: float, place: StudyPlace) -> Scored:
    points = {run.data_seed: point for run in contestant.runs for point in run.cooled if point.share == share}
    scores = {seed: point.score for seed, point in points.items()}
    documents, stands = None, run_status(place.folder / contestant.runs[0].folder)
    tokenizer = str((stands.metadata or {}).get("tokenizer_fingerprint"))
    if len(contestant.runs) == 1 and share == 1:
        sums = found_in(place.folder / contestant.runs[0].folder, "test").get("documents")
        documents = None if sums is None else DocumentSums(**{key: np.array(sums[key], float) for key in sums})
    return Scored(contestant.name, scores, documents, tokenizer)


def audit_result(found: StudyAudit) -> AuditResult:
    head = ("run", "step", "tokens", "stream hash", "corpus", "tokenizer", "parameters")
    rows = []
    for repeat in found.repeats:
        for run in repeat.runs:
            facts = run.facts(repeat.step)
            hashes = (str(facts.get(key))[:12] for key in ("stream_hash", "corpus_digest", "tokenizer_fingerprint"))
            numbers = (repeat.step, run.tokens.get(repeat.step or 0), facts.get("model_cost.parameters"))
            step, tokens, parameters = ("–" if one is None else f"{one:,}" for one in numbers)
            rows.append((run.name, step, tokens, *hashes, parameters))
    return AuditResult(passed=found.passed, findings=found.findings, notes=found.notes, table=(head, *rows))


def facts(study: StudySpec, place: StudyPlace, contestants: Sequence[Contestant]) -> StudyFacts:
    """What was shared, and where the numbers come from."""
    folders = [place.folder / run.folder for one in contestants for run in one.runs]
    metadata = next((found for folder in folders if (found := run_status(folder).metadata)), None)
    if metadata is None:
        lost = [f"{run.folder} {run.message}" for one in contestants for run in one.runs if run.status == "diverged"]
        why = f": {'; '.join(lost)}" if lost else " yet; nothing can be said"
        raise UserError(f"{place.folder}: no run has a checkpoint{why}")
    scores = [point.score for one in contestants for run in one.runs for point in run.cooled]
    absent = absences(study, place, contestants)
    finished = not any(why == NOT_BEGUN for why in absent.values()) and all(
        run.status == "diverged" or any(point.share == 1 for point in run.cooled) for c in contestants for run in c.runs
    )
    per_step, steps = metadata["token_metrics"]["tokens_per_step"], metadata["planned_steps"]
    return StudyFacts(
        name=study.study_name,
        corpus=study.data.title,
        tokenizer=study.tokenizer.tokenizer_type,
        vocab_size=contestants[0].model["vocab_size"],
        bytes_per_token=mean_bytes(scores),
        steps=steps,
        tokens=steps * per_step,
        tokens_per_step=per_step,
        sequence_length=study.data.max_sequence_length,
        schedule=study.training.schedule,
        precision=study.training.precision,
        optimizer=study.training.optimizer,
        noise=study.data.noise,
        match=matched_in_words(study),
        seeds=study.seeds.pairs,
        baseline=study.compared_with,
        primary=PRIMARY,
        cooled_at=(*study.training.cooled_at, 1.0),
        device=" and ".join(trained_on(folders)),
        versions=metadata["versions"],
        revision=metadata["git_commit_hash"],
        corpus_digest=metadata["corpus_digest"],
        study_digest=place.digest,
        absent=absent,
        finished=finished,
    )


def absences(study: StudySpec, place: StudyPlace, contestants: Sequence[Contestant]) -> dict[str, str]:
    """Contestants without a run, and why."""
    here = {one.name for one in contestants}
    return {
        name: NEVER_TUNED if study.tuning is not None and never_tuned(sweep(study, name, place)) else NOT_BEGUN
        for name in study.contestants
        if name not in here
    }


def mean_bytes(scores: Sequence[Score]) -> float:
    """Bytes per token of what was scored; that of the first score is that of all."""
    return scores[0].bytes / scores[0].tokens if scores else 0.0
