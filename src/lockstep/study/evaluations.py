"""The tests that a study names under `evaluate`, one after another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lockstep.config.data import DataSpec
from lockstep.config.evaluate import EvaluateSpec
from lockstep.config.spec import Spec
from lockstep.config.tasks import AnyTask
from lockstep.data.commonsense import read_commonsense
from lockstep.data.tasks.haystacks import require_spelling
from lockstep.data.tasks.registry import make_task
from lockstep.data.tokenizer_base import Tokenizer
from lockstep.evaluation.beyond import measure_beyond
from lockstep.evaluation.commonsense import score_commonsense
from lockstep.evaluation.tasks import score_task
from lockstep.models.language_model import LanguageModel
from lockstep.progress import showing
from lockstep.study.subject import Finder, Found, Subject

DEPTHS = 5
"""Bands of depth that a task's answers are told apart by, where it does not say."""


def tests(subject: Subject) -> Iterator[tuple[str, Spec, Finder]]:
    """What the study asks trained contestants: the name of each test, its knobs, and who does it."""
    for task in subject.evaluate.tasks(subject.run.data.tasks):
        yield task.name, task, partial(answers, task)
    if subject.evaluate.lengths is not None:
        yield "beyond", subject.evaluate.lengths, beyond
    if subject.evaluate.commonsense is not None:
        yield "commonsense", subject.evaluate.commonsense, commonsense


def check_tests(evaluate: EvaluateSpec, data: DataSpec, tokenizer: Tokenizer) -> None:
    """Refuse what could not be done once everything is trained: missing files, instances that do not fit."""
    for spec in evaluate.tasks(data.tasks):
        task, lengths = make_task(spec, tokenizer), spec.lengths or (data.max_sequence_length,)
        for level in task.levels:
            task.instance("test", 0, min(lengths), level)
    if evaluate.commonsense is not None:
        for name, choices in read_commonsense(evaluate.commonsense.sets, 1).items():
            require_spelling(tokenizer, choices[0].continuations, f"commonsense {name}")


def answers(spec: AnyTask, subject: Subject, model: LanguageModel) -> Found | None:
    """To a task, at the lengths asked for or at that of training."""
    if not model.causal:
        return None
    task, bands = make_task(spec, subject.prepared.tokenizer), getattr(spec, "depths", DEPTHS)
    with showing(f"{subject.run.experiment_name} {spec.name}", "share") as progress:
        lengths = spec.lengths or (subject.length,)
        scores = score_task(model, task, lengths, spec.instances, bands, progress.reach)
    return {"scores": [one.as_dict() for one in scores]}


def beyond(subject: Subject, model: LanguageModel) -> Found | None:
    assert subject.evaluate.lengths is not None
    return measure_beyond(model, subject.prepared, subject.length, subject.evaluate.lengths, subject.device)


def commonsense(subject: Subject, model: LanguageModel) -> Found | None:
    spec = subject.evaluate.commonsense
    assert spec is not None
    if not model.causal:
        return None
    return {"scores": score_commonsense(model, subject.prepared.tokenizer, spec.sets, spec.examples)}
