"""Generation with the cached step says what the whole model would."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.laws.comparison import require_equal
from lockstep.laws.law import LawBroken
from lockstep.laws.subject import Subject
from lockstep.models.sampling import Sampling

GREEDY = Sampling(temperature=0)
NEW = 14


def greedy_generation(subject: Subject) -> None:
    """Token by token, for a batch of prompts, short and long."""
    model = subject.model()
    for length in (1, 11):
        prompt = subject.tokens(3, length, seed=length)
        generated = model.generate(prompt, NEW, GREEDY)
        tokens = prompt
        for _ in range(NEW):
            tokens = torch.cat((tokens, model(tokens)[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
        require_same_tokens(generated, tokens, f"{NEW} greedy tokens after a prompt of {length}")


def dropout_is_off(subject: Subject) -> None:
    """Dropout acts in training only: not in evaluation, and not in generation even amid training."""
    names = [name for name in subject.kind.model_fields if name.endswith("dropout")]
    high: dict[str, Any] = dict.fromkeys(names, 0.5)
    none: dict[str, Any] = dict.fromkeys(names, 0.0)
    model, plain = subject.model(**high), subject.model(**none)
    tokens = subject.tokens(2, 12)
    require_equal(model(tokens), plain(tokens), "evaluation with dropout 0.5 against without dropout", 0.0)
    if subject.kind.causal:
        expected = plain.generate(tokens, NEW, GREEDY)
        require_same_tokens(model.train().generate(tokens, NEW, GREEDY), expected, "generation amid training")
        if not model.training:
            raise LawBroken("generation left the model in evaluation mode, though it was in training")


def require_same_tokens(actual: Tensor, expected: Tensor, what: str) -> None:
    if actual.shape != expected.shape:
        raise LawBroken(f"{what}: shape {list(actual.shape)}, expected {list(expected.shape)}")
    wrong = (actual != expected).nonzero()
    if len(wrong):
        row, position = wrong[0].tolist()
        said, meant = int(actual[row, position]), int(expected[row, position])
        raise LawBroken(f"{what}: row {row} says {said} at position {position}, the whole model {meant}")
