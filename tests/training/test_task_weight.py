"""Answers among text: they count as much as is asked, and nothing else of an instance does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep.data.masking import IGNORED
from lockstep.data.prepared import ANSWER, TEXT, UNASKED
from lockstep.models.language_model import LanguageModel
from lockstep.training.context import Context, make_context
from lockstep.training.distribution import World
from lockstep.training.loop import Trainer
from tests.training.tiny_runs import tiny_run, without_dropout

RECALL = {"name": "recall", "pairs": [2], "vocabulary": 16, "questions": 2}


def context_of(corpus: Path, folder: Path, weight: float, accumulation: int = 1) -> Context:
    data = {"tasks": [RECALL], "task_sequences": 700, "task_weight": weight}
    training = {"gradient_accumulation_steps": accumulation, "max_grad_norm": None}
    run = tiny_run(corpus, "transformer++", data=data, model=without_dropout("transformer++"), training=training)
    return make_context(run, folder, World())


def gradients(trainer: Trainer) -> list[torch.Tensor]:
    """Of the first step, caught before it is taken."""
    caught: list[torch.Tensor] = []
    optimizer = trainer.optimizers[0]
    optimizer.register_step_pre_hook(
        lambda *_: caught.extend(p.grad.clone() for p in trainer.model.parameters() if p.grad is not None)
    )
    trainer.step()
    return caught


def by_hand(context: Context, weight: float) -> list[torch.Tensor]:
    """Gradients of the weighted mean over all targets of the first step, added up one by one."""
    torch.manual_seed(context.run.seed_for_init)
    model = LanguageModel(context.model_spec)
    windows = context.stream.step(0)
    kinds = context.prepared.asked("train", context.stream.target_places(0))
    assert kinds is not None
    assert {UNASKED, TEXT, ANSWER} == set(np.unique(kinds))
    logs = model(torch.from_numpy(windows[:, :-1])).log_softmax(dim=-1)
    total, summed = 0.0, torch.zeros(())
    for row, column in np.argwhere(kinds != UNASKED):
        counts = weight if kinds[row, column] == ANSWER else 1.0
        summed = summed - counts * logs[row, column, windows[row, column + 1]]
        total += counts
    (summed / total).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("weight", [1.0, 20.0])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_gradients_are_those_of_the_weighted_mean(
    weight: float, accumulation: int, tiny_corpus: Path, tmp_path: Path
) -> None:
    context = context_of(tiny_corpus, tmp_path / "run", weight, accumulation)
    (tmp_path / "run").mkdir()
    trainer = Trainer(context)
    for found, expected in zip(gradients(trainer), by_hand(context, weight), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    trainer.close()


def test_the_ledger_counts_targets_and_not_their_weight(tiny_corpus: Path, tmp_path: Path) -> None:
    context = context_of(tiny_corpus, tmp_path / "run", 20.0)
    batch = context.batch(context.stream.step(0), 0)
    assert batch.supervised == int((batch.targets != IGNORED).sum())
    assert batch.total > batch.supervised
