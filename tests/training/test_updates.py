"""What one step does to the weights: dropout drawn anew, gradients clipped, overflows skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.config.run import RunSpec
from lockstep.models.loss import token_losses
from lockstep.training.context import make_context
from lockstep.training.distribution import World
from lockstep.training.loop import Trainer
from lockstep.training.run_folder import read_log
from tests.training.tiny_runs import tiny_run, without_dropout

RATE, EPSILON = 1e5, 1e3
"""With an epsilon beyond any gradient, AdamW's first update is the gradient times RATE / EPSILON."""


def start(run: RunSpec, folder: Path) -> Trainer:
    return Trainer(make_context(run, folder, World()))


def records(trainer: Trainer) -> list[dict[str, Any]]:
    """What the steps so far have written down."""
    trainer.recorder.flush()
    trainer.recorder.close()
    return read_log(trainer.context.folder / "metrics.jsonl")


def copies(trainer: Trainer) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.fixture
def single_window(tmp_path: Path) -> Path:
    """A corpus that every step sees whole: one window of 16 tokens."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("the cat sees a dog")
    return folder


@pytest.mark.parametrize(("dropout", "different"), [(0.5, 3), (0.0, 1)])
def test_each_step_draws_its_own_dropout(dropout: float, different: int, single_window: Path, tmp_path: Path) -> None:
    run = tiny_run(
        single_window,
        data={"batch_size": 1},
        model={"dropout": dropout, "attention_dropout": 0.0},
        training={"learning_rate": 1e-30, "weight_decay": 0.0},
    )
    trainer = start(run, tmp_path)
    assert trainer.context.stream.windows == 1
    for _ in range(3):
        trainer.step()
    assert len({record["loss"] for record in records(trainer)}) == different


def clipping_run(corpus: Path, limit: float | None) -> RunSpec:
    proportional = {"learning_rate": RATE, "adam_epsilon": EPSILON, "weight_decay": 0.0, "warmup_steps": 0}
    return tiny_run(
        corpus,
        model=without_dropout(),
        training={**proportional, "schedule": "constant", "max_grad_norm": limit},
    )


def own_gradient(trainer: Trainer) -> list[Tensor]:
    """The first step's gradient, computed beside the trainer."""
    windows = torch.from_numpy(trainer.context.stream.step(0))
    losses = token_losses(trainer.model(windows[:, :-1]), windows[:, 1:])
    return list(torch.autograd.grad(losses.mean(), list(trainer.model.parameters())))


def size(tensors: list[Tensor]) -> float:
    return torch.stack([tensor.double().square().sum() for tensor in tensors]).sum().sqrt().item()


@pytest.mark.parametrize("limit", [1e-3, 1e3, None])
def test_gradients_are_clipped_to_their_common_norm(limit: float | None, tiny_corpus: Path, tmp_path: Path) -> None:
    trainer = start(clipping_run(tiny_corpus, limit), tmp_path)
    gradient, before = own_gradient(trainer), copies(trainer)
    norm = size(gradient)
    assert 1e-2 < norm < 1e2, "the limits lie on both sides"
    trainer.step()
    moved = [old - new for old, new in zip(before, copies(trainer), strict=True)]
    shrunk = 1.0 if limit is None else min(1.0, limit / norm)
    expected = [RATE / EPSILON * shrunk * one for one in gradient]
    assert size([a - b for a, b in zip(moved, expected, strict=True)]) < 0.02 * size(expected)


def test_the_norm_that_is_written_down_is_the_one_before_clipping(tiny_corpus: Path, tmp_path: Path) -> None:
    trainer = start(clipping_run(tiny_corpus, 1e-3), tmp_path)
    norm = size(own_gradient(trainer))
    trainer.step()
    assert records(trainer)[0]["gradient_norm"] == pytest.approx(norm, rel=1e-4)


def overflow(gradient: Tensor) -> Tensor:
    """A gradient with one number that half precision cannot hold."""
    planted = gradient.clone()
    planted.view(-1)[0] = float("inf")
    return planted


def half_precision(corpus: Path, limit: float | None, folder: Path) -> Trainer:
    run = tiny_run(corpus, training={"precision": "fp16", "optimizer": "muon", "max_grad_norm": limit})
    trainer = start(run, folder)
    assert [type(one).__name__ for one in trainer.optimizers] == ["Muon", "AdamW"]
    return trainer


def step_with(trainer: Trainer, optimizer: int, hook: Callable[[Tensor], Tensor]) -> None:
    """One step in which one parameter of an optimizer has another gradient."""
    parameter = trainer.optimizers[optimizer].param_groups[0]["params"][0]
    handle = parameter.register_hook(hook)
    trainer.step()
    handle.remove()


@pytest.mark.parametrize("limit", [1.0, None])
@pytest.mark.parametrize("optimizer", [0, 1])
def test_an_overflow_stops_every_optimizer(
    optimizer: int, limit: float | None, tiny_corpus: Path, tmp_path: Path
) -> None:
    trainer = half_precision(tiny_corpus, limit, tmp_path)
    scale, before = trainer.scaler.get_scale(), copies(trainer)
    step_with(trainer, optimizer, overflow)
    assert all(torch.equal(old, new) for old, new in zip(before, copies(trainer), strict=True))
    assert not any(one.state for one in trainer.optimizers), "an optimizer has counted a step that was none"
    assert trainer.scaler.get_scale() == scale / 2
    trainer.step()
    assert trainer.scaler.get_scale() == scale / 2
    assert not any(torch.equal(old, new) for old, new in zip(before, copies(trainer), strict=True))
    first, second = records(trainer)
    assert first["skipped"] is True
    assert first["gradient_norm"] is None
    assert "skipped" not in second
