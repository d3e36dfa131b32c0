"""A step of training: what is held in it, against what its parts hold."""

from __future__ import annotations

import copy

import pytest
import torch

from lockstep.config.training import TrainingSpec
from lockstep.evaluation.inference import measure_training_peak
from lockstep.evaluation.training_step import measure_training
from lockstep.models.registry import build
from lockstep.training.optimizers import build_optimizers
from tests.evaluation.memory_models import SMALL, random_tokens

CPU = torch.device("cpu")
FLOAT = 4


@pytest.mark.parametrize("architecture", ["transformer++", "gated-deltanet", "lstm", "bert"])
def test_an_optimizer_keeps_two_numbers_for_each_weight(architecture: str) -> None:
    torch.manual_seed(0)
    model, tokens = build(architecture, **SMALL).eval(), random_tokens(4, 32)
    weights = sum(parameter.numel() * FLOAT for parameter in model.parameters())
    without = measure_training_peak(model, tokens)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    found = measure_training(model, tokens, build_optimizers(model, TrainingSpec()), CPU, rounds=3)
    assert found.peak_bytes == without + 2 * weights
    assert (found.batch, found.length, found.seconds.count) == (4, 32, 3)
    assert found.tokens_per_second == pytest.approx(4 * 32 / found.seconds.median)
    assert not model.training
    changed = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert all(changed), "it really trains"


def test_lower_precision_learns_as_a_trainer_does() -> None:
    """Each step with the weights that the one before left, not with those that were once cast."""
    torch.manual_seed(0)
    model, tokens = build("transformer++", **SMALL), random_tokens(4, 32)
    other = copy.deepcopy(model).train()
    measure_training(model, tokens, build_optimizers(model, TrainingSpec()), CPU, rounds=2, lower=torch.bfloat16)
    (optimizer,) = build_optimizers(other, TrainingSpec())
    for _ in range(5):  # two for bytes, one to warm up, two that are timed
        with torch.autocast("cpu", torch.bfloat16):
            losses = other(tokens, targets=tokens).losses
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for one, wanted in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, wanted)
