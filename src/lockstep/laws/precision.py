"""bfloat16 stays finite, as the parameters' own dtype and under autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from lockstep.laws.law import LawBroken
from lockstep.laws.subject import LENGTH, Subject
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import token_losses


def bfloat16_is_finite(subject: Subject) -> None:
    lowered = torch.bfloat16
    require_finite(subject.fresh(lowered), subject, nullcontext(), "default parameters in bfloat16", backward=True)
    require_finite(subject.model(lowered), subject, nullcontext(), "random parameters in bfloat16")
    with_autocast = torch.autocast("cpu", lowered)
    full = torch.float32
    require_finite(subject.fresh(full), subject, with_autocast, "default parameters under autocast", backward=True)
    require_finite(subject.model(full), subject, with_autocast, "random parameters under autocast")


def require_finite(
    model: LanguageModel, subject: Subject, context: AbstractContextManager[object], what: str, backward: bool = False
) -> None:
    tokens = subject.tokens(2, LENGTH)
    with context:
        logits = model(tokens)
        require(logits, f"forward with {what}")
        if subject.kind.causal:
            _, state = model.step(tokens[:, :-1])
            require(model.step(tokens[:, -1:], state)[0], f"step with {what}")
        loss = token_losses(logits, subject.tokens(2, LENGTH, seed=1)).mean()
    if not backward:
        return
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            require(parameter.grad, f"backward with {what}, gradient of {name}")


def require(tensor: Tensor, what: str) -> None:
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise LawBroken(f"{what}: {bad} of {tensor.numel()} numbers are NaN or infinite")
