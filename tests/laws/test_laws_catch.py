"""The laws can fail: each deliberately broken toy is caught by the law it breaks."""

from __future__ import annotations

import pytest
import torch

from lockstep.laws import LAWS, judge, law_named
from tests.laws.toys import (
    CannotLearn,
    ChangesGivenState,
    CountsCalls,
    DeadParameter,
    DependsOnLength,
    DetachedParameter,
    DropsInEvaluation,
    ForgetsUnderInferenceMode,
    GrowingState,
    KeepsPrefillAlive,
    LeaksInsideSegments,
    LeaksThroughZeroGate,
    LowersState,
    MixesBatch,
    NotFiniteInBfloat16,
    Raises,
    ReachesFarther,
    ReachesLess,
    SeesItselfOnly,
    SharesPosition,
    ShiftedByOne,
    Sound,
    StepsTwice,
    UnsavedWeights,
    Windowed,
    WindowedAsDeclared,
    WrongAfterWindow,
    WrongFlops,
    WrongParameters,
    WrongStateBytes,
    subject_of,
)

CATCHES: list[tuple[type[Sound], str, str]] = [
    (LeaksThroughZeroGate, "no-future-leak", "those from 1 on moved the output at 0"),
    (LeaksInsideSegments, "no-future-leak", "those from 1 on moved the output at 0"),
    (DependsOnLength, "no-future-leak", "followed by 28 more tokens"),
    (DependsOnLength, "forward-continues", "forward continued at 1"),
    (MixesBatch, "batch-independence", "new tokens in row 0 of 4 moved row"),
    (ChangesGivenState, "state-untouched", "changed the state it was given"),
    (WrongAfterWindow, "step-equals-forward", "step over 1+1+1+1+… against forward"),
    (WrongAfterWindow, "greedy-generation", "14 greedy tokens after a prompt of 1"),
    (ForgetsUnderInferenceMode, "step-equals-forward", "step under inference_mode over"),
    (SharesPosition, "mixed-positions", "stacked states at 1/6/12/19: row 0"),
    (SharesPosition, "states-selected", "selected states at 19/1/19/6: row 1"),
    (SharesPosition, "states-reset", "reset states at 1/0/12/0: row 0"),
    (SharesPosition, "states-saved", "read back states at 1/6/12/19: row 0"),
    (GrowingState, "state-shapes", "the state holds"),
    (KeepsPrefillAlive, "state-bytes", "after 7 tokens views keep"),
    (WrongStateBytes, "state-bytes", "cost claims 296 for one"),
    (WrongFlops, "training-flops", "were counted (ratio 1.09"),
    (StepsTwice, "decoding-flops", "decoding FLOPs after 32 tokens"),
    (WrongParameters, "parameters", "cost claims 7554 parameters, but the model has 7552"),
    (DeadParameter, "every-gradient", "unused gets no gradient"),
    (DetachedParameter, "every-gradient", "dead is zero everywhere"),
    (CountsCalls, "gradient-checkpointing", "when activations are recomputed"),
    (LowersState, "state-shapes", "under bfloat16 autocast"),
    (NotFiniteInBfloat16, "bfloat16", "numbers are NaN or infinite"),
    (ShiftedByOne, "noise-unlearnable", "below chance"),
    (CannotLearn, "pattern-learnable", "on a plain pattern"),
    (Windowed, "reach", "declared unlimited"),
    (ReachesFarther, "reach", "moved the output 6 later"),
    (ReachesLess, "reach", "no output moved more than 6 tokens later"),
    (UnsavedWeights, "save-and-load", "not bit for bit equal"),
    (DropsInEvaluation, "dropout-off", "with dropout 0.5 against without"),
    (DropsInEvaluation, "same-seed", "different logits"),
    (Raises, "common-fields", "NotImplementedError"),
]


@pytest.mark.parametrize(("toy", "law", "seen"), CATCHES, ids=[f"{toy.__name__}-{law}" for toy, law, _ in CATCHES])
def test_caught(toy: type[Sound], law: str, seen: str) -> None:
    verdict = judge(law_named(law), subject_of(toy))
    assert verdict.outcome == "broken"
    assert seen in verdict.message
    assert "\n" not in verdict.message


def test_every_law_catches_something() -> None:
    assert {law.name for law in LAWS} == {law for _, law, _ in CATCHES}


@pytest.mark.parametrize("toy", [Sound, WindowedAsDeclared])
def test_a_sound_toy_breaks_nothing(toy: type[Sound]) -> None:
    verdicts = [judge(law, subject_of(toy)) for law in LAWS]
    assert [(verdict.law.name, verdict.message) for verdict in verdicts if not verdict.passed] == []


def test_default_initialisation_would_hide_the_gated_leak() -> None:
    subject = subject_of(LeaksThroughZeroGate)
    tokens = subject.tokens(1, 12)
    altered = torch.cat((tokens[:, :6], subject.replaced(tokens[:, 6:])), dim=1)
    for model, leaks in ((subject.fresh(), False), (subject.model(), True)):
        assert torch.equal(model(tokens)[:, :6], model(altered)[:, :6]) is not leaks


def test_bidirectional_in_name_only() -> None:
    verdict = judge(law_named("no-future-leak"), subject_of(SeesItselfOnly, causal_model=False))
    assert "declared bidirectional" in verdict.message


def test_unexpected_errors_are_told_in_one_line() -> None:
    verdict = judge(law_named("every-gradient"), subject_of(Raises))
    assert verdict.message == "NotImplementedError: step is not written yet"
