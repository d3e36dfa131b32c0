"""The label shift is right: a model learns what can be predicted, and nothing where nothing can."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.laws.law import LawBroken
from lockstep.laws.subject import Subject
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import IGNORED, token_losses


class Training(NamedTuple):
    """How long, and at which learning rate."""

    steps: int
    rate: float


ROWS, TIME = 16, 24
NEXT_TOKEN = Training(steps=40, rate=2e-2)
HIDDEN_TOKEN = Training(steps=120, rate=5e-3)
"""A masked model must first learn to look at its neighbours, which next-token patterns do not ask for."""
MASKED = 0.2
"""The share of tokens hidden from a masked model."""
MARGIN = 0.1
"""Nats below chance that noise alone does not reach."""

Source = Callable[[int, torch.Generator], Tensor]
"""Token ids [ROWS, TIME] below a vocabulary size."""


def noise_is_unlearnable(subject: Subject) -> None:
    """On independent uniform tokens, a loss below chance means that the model sees its labels."""
    loss, chance = trained_loss(subject, noise)
    if loss < chance - MARGIN:
        raise LawBroken(f"after training on pure noise the loss is {loss:.3f} nats, below chance ({chance:.3f})")


def pattern_is_learnable(subject: Subject) -> None:
    """On tokens that follow from the others, the loss must fall far below chance."""
    loss, chance = trained_loss(subject, succession if subject.kind.causal else repetition)
    if not loss < chance / 2:
        raise LawBroken(f"after training on a plain pattern the loss is {loss:.3f} nats (chance {chance:.3f})")


def trained_loss(subject: Subject, source: Source) -> tuple[float, float]:
    """Loss on fresh batches after training, and that of blind guessing."""
    model = subject.fresh().train()
    generator = torch.Generator().manual_seed(0)
    # A masked model's mask is the last id, which the text itself never uses.
    vocabulary = model.spec.vocab_size - (0 if model.causal else 1)
    training = NEXT_TOKEN if model.causal else HIDDEN_TOKEN
    optimizer = torch.optim.Adam(model.parameters(), lr=training.rate)
    for _ in range(training.steps):
        optimizer.zero_grad()
        batch_loss(model, source(vocabulary, generator), generator).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        fresh = [float(batch_loss(model, source(vocabulary, generator), generator)) for _ in range(4)]
    return sum(fresh) / len(fresh), math.log(vocabulary)


def batch_loss(model: LanguageModel, tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Next-token loss of a causal model, or the loss on hidden tokens of a masked one."""
    if model.causal:
        return token_losses(model(tokens[:, :-1]), tokens[:, 1:]).mean()
    hidden = torch.rand(tokens.shape, generator=generator) < MASKED
    inputs = tokens.masked_fill(hidden, model.spec.vocab_size - 1)
    losses = token_losses(model(inputs), tokens.masked_fill(~hidden, IGNORED))
    return losses.sum() / hidden.sum()


def noise(vocabulary: int, generator: torch.Generator) -> Tensor:
    return torch.randint(vocabulary, (ROWS, TIME), generator=generator)


def succession(vocabulary: int, generator: torch.Generator) -> Tensor:
    """Each token follows from the one before it: x → 3x + 1."""
    tokens = [torch.randint(vocabulary, (ROWS,), generator=generator)]
    while len(tokens) < TIME:
        tokens.append((3 * tokens[-1] + 1) % vocabulary)
    return torch.stack(tokens, dim=1)


def repetition(vocabulary: int, generator: torch.Generator) -> Tensor:
    """Each row says one token over and over, so that any neighbour tells a hidden one."""
    return torch.randint(vocabulary, (ROWS, 1), generator=generator).expand(ROWS, TIME).clone()
