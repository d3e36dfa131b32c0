"""Associative recall tells the delta rules from linear attention, at one size and by one recipe.

Sixteen pairs are shown once and then asked for. A delta rule learns to say them in one layer: its convolution joins a
key and its value, and its corrections keep one pair from disturbing another. Linear attention has neither.
"""

from __future__ import annotations

import pytest
import torch

import lockstep
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import token_losses
from tests.memory.recall import PAIRS, SYMBOLS, Curriculum, answers, draw_task

STEPS, SCORE_INTERVAL = 300, 50
"""Delta rules needed 100 to 200, from four seeds each."""
LEARNING_RATE, WARMUP = 1e-2, 30
ENOUGH = 0.97


def accuracy(model: LanguageModel) -> float:
    """On sequences held out."""
    with torch.inference_mode():
        logits, values = answers(model, draw_task(torch.Generator().manual_seed(99), 256, PAIRS))
    return float((logits.argmax(dim=-1) == values).double().mean())


def trained(architecture: str) -> LanguageModel:
    """After all steps, or once enough of the held-out answers are right."""
    torch.manual_seed(0)
    model = lockstep.build(architecture, vocab_size=2 * SYMBOLS, max_length=4 * PAIRS, dim=64, depth=1, heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    curriculum = Curriculum(seed=1)
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / WARMUP)
        logits, values = answers(model, curriculum.next_task())
        token_losses(logits, values).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        curriculum.answered(float((logits.argmax(dim=-1) == values).double().mean()))
        if step % SCORE_INTERVAL == 0 and accuracy(model) >= ENOUGH:
            break
    return model


@pytest.mark.parametrize("architecture", ["deltanet", "gated-deltanet"])
def test_delta_rules_recall(architecture: str) -> None:
    assert accuracy(trained(architecture)) >= 0.95


def test_linear_attention_does_not() -> None:
    assert accuracy(trained("linear-attention")) < 0.5
