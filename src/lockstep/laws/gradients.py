"""Every parameter takes part in learning."""

from __future__ import annotations

import torch

from lockstep.laws.law import LawBroken
from lockstep.laws.subject import LENGTH, Subject
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import token_losses


def every_gradient(subject: Subject) -> None:
    model = subject.model()
    differentiate(model, subject)
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            raise LawBroken(f"{name} gets no gradient")
        if not torch.isfinite(parameter.grad).all():
            raise LawBroken(f"the gradient of {name} holds NaN or infinity")
        if not parameter.grad.any():
            raise LawBroken(f"the gradient of {name} is zero everywhere")


def checkpointed_gradients(subject: Subject) -> None:
    """What is computed a second time must come out as it did the first time."""
    model, saving = subject.model().train(), subject.model().train()
    saving.gradient_checkpointing = True
    differentiate(model, subject)
    differentiate(saving, subject)
    pairs = zip(model.named_parameters(), saving.parameters(), strict=True)
    for (name, parameter), other in pairs:
        if parameter.grad is None or other.grad is None:
            continue  # every_gradient's business
        if not torch.allclose(parameter.grad, other.grad, rtol=1e-9, atol=1e-12):
            apart = float((parameter.grad - other.grad).abs().amax())
            raise LawBroken(f"the gradient of {name} differs by {apart:.1e} when activations are recomputed")


def differentiate(model: LanguageModel, subject: Subject) -> None:
    """Gradients of the loss on random tokens, enough of them that the whole vocabulary appears."""
    # One seed for all, so that dropout, where a variant has it, falls alike.
    torch.manual_seed(0)
    tokens, targets = subject.tokens(8, LENGTH, seed=1), subject.tokens(8, LENGTH, seed=2)
    token_losses(model(tokens), targets).mean().backward()
