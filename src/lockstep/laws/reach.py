"""How far a token reaches: to the end where nothing is forgotten by construction, else exactly as far as declared."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.laws.comparison import EXACT, gap
from lockstep.laws.law import LawBroken
from lockstep.laws.subject import Subject
from lockstep.models.language_model import LanguageModel

FAR = 56
"""Tokens between the first and the last: beyond the windows of every layer of a variant together."""


def reach(subject: Subject) -> None:
    declared = subject.spec().reach
    if declared is None:
        require_unlimited(subject)
    else:
        require_limited(subject, declared)


def require_unlimited(subject: Subject) -> None:
    """The effect may be tiny, so that a gradient counts where the value has been rounded away."""
    model = subject.model()
    tokens = unique_first(subject, FAR)
    altered = tokens.clone()
    altered[:, 0] = 0
    moved = gap(model(altered), model(tokens))[0, -1]
    if float(moved) == 0 and not gradient_reaches(model, tokens, FAR - 1):
        raise LawBroken(f"reach is declared unlimited, but the first of {FAR} tokens does not reach the last output")


def require_limited(subject: Subject, declared: int) -> None:
    """Each token in turn is replaced; the farthest output that moves must stand exactly `declared` later."""
    length = declared + 2 * subject.spec().depth + 8
    model = subject.model(max_length=max(length, subject.spec().max_length))
    tokens = subject.tokens(1, length)
    others = subject.replaced(tokens)
    logits = model(tokens)
    farthest = -1
    for place in range(length):
        altered = tokens.clone()
        altered[:, place] = others[:, place]
        moved = gap(model(altered), logits)[0]
        reached = int((moved > EXACT).nonzero().max()) - place if bool((moved > EXACT).any()) else -1
        if reached > declared:
            by = float(moved[place + reached])
            raise LawBroken(
                f"reach is declared {declared}, but token {place} moved the output {reached} later by {by:.1e}"
            )
        farthest = max(farthest, reached)
    if farthest < declared and not gradient_reaches(model, unique_first(subject, length), declared):
        raise LawBroken(f"reach is declared {declared}, but no output moved more than {farthest} tokens later")


def unique_first(subject: Subject, length: int) -> Tensor:
    """Tokens [1, length] whose first one occurs nowhere else."""
    last = subject.spec().vocab_size - 1
    tokens = subject.tokens(1, length) % last
    tokens[:, 0] = last
    return tokens


def gradient_reaches(model: LanguageModel, tokens: Tensor, position: int) -> bool:
    """Whether the vector of the first token, which is unique, has a gradient from the output at `position`.

    Its own logit is left out: with tied tables the vector would move that one directly.
    """
    first = int(tokens[0, 0])
    generator = torch.Generator().manual_seed(0)
    logits = model(tokens)[0, position]
    weights = torch.randn(logits.shape, generator=generator, dtype=logits.dtype)
    weights[first] = 0
    (gradient,) = torch.autograd.grad((logits * weights).sum(), [model.embedding.weight])
    return bool((gradient[first] != 0).any())
