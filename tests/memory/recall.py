"""Associative recall: pairs of symbols are shown once, and each value must be said when its key comes again.

What lies farther back than attention reaches can be said by a memory alone: keys come once each and values are drawn
independently of each other, so that a model without memory can do no better than guess one of 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import lockstep
from lockstep.models.language_model import LanguageModel
from lockstep.models.loss import token_losses

SYMBOLS = 32
"""Keys are 0 to 31, values 32 to 63."""
PAIRS = 16
"""In the task that is scored; training begins with fewer."""
DEPTH, WINDOW = 2, 8
FAR = DEPTH * WINDOW
"""Attention carries nothing over more tokens than this."""

STAGES = (2, 4, 8, PAIRS)
"""Pairs in a training sequence, one stage after the other."""
STAGE_STEPS = 60
"""Steps of each stage; the last goes on. Steps alone decide, so that no model waits for what it cannot learn."""
QUERIES = 1024
"""In a training batch, at most: fewer pairs make more sequences."""
LARGEST_BATCH = 256
LEARNING_RATE, WARMUP = 4e-3, 50
SCORED_SEQUENCES, SCORE_INTERVAL = 256, 50


class Task(NamedTuple):
    """Sequences k₁ v₁ ... kₙ vₙ, and the same pairs again in another order."""

    tokens: Tensor  # [batch, 4 × pairs]
    distance: Tensor  # [batch, pairs], from each repeated key back to where it stood first


class Score(NamedTuple):
    """How training ended."""

    far: float
    steps: int


def draw_task(generator: torch.Generator, batch: int, pairs: int) -> Task:
    """Distinct keys, values with repetition."""
    keys = torch.rand(batch, SYMBOLS, generator=generator).argsort(dim=-1)[:, :pairs]
    values = torch.randint(SYMBOLS, 2 * SYMBOLS, (batch, pairs), generator=generator)
    order = torch.rand(batch, pairs, generator=generator).argsort(dim=-1)
    shown = torch.stack((keys, values), dim=-1).flatten(1)
    asked = torch.stack((keys.gather(1, order), values.gather(1, order)), dim=-1).flatten(1)
    distance = 2 * (pairs + torch.arange(pairs) - order)
    return Task(torch.cat((shown, asked), dim=1), distance)


def answers(model: LanguageModel, task: Task) -> tuple[Tensor, Tensor]:
    """Logits [batch, pairs, vocabulary] after each repeated key, and the values that should follow."""
    shown = task.tokens.shape[1] // 2
    logits: Tensor = model(task.tokens[:, :-1])
    return logits[:, shown::2], task.tokens[:, shown + 1 :: 2]


@torch.inference_mode()
def far_accuracy(model: LanguageModel) -> float:
    """On sequences held out, of the pairs that no attention reaches."""
    task = draw_task(torch.Generator().manual_seed(99), SCORED_SEQUENCES, PAIRS)
    logits, values = answers(model, task)
    right = logits.argmax(dim=-1) == values
    return float(right[task.distance > FAR].double().mean())


def training_tasks(seed: int) -> Iterator[Task]:
    """Without end."""
    generator = torch.Generator().manual_seed(seed)
    step = 0
    while True:
        pairs = STAGES[min(step // STAGE_STEPS, len(STAGES) - 1)]
        yield draw_task(generator, min(QUERIES // pairs, LARGEST_BATCH), pairs)
        step += 1


def build(architecture: str, use_memory: bool, seed: int) -> LanguageModel:
    """Attention as short as the chunks of the memory allow; the model that is compared has none of the latter."""
    torch.manual_seed(seed)
    return lockstep.build(
        architecture,
        vocab_size=2 * SYMBOLS,
        max_length=4 * PAIRS,
        dim=64,
        depth=DEPTH,
        heads=2,
        chunk=2,
        segment=WINDOW,
        window=WINDOW,
        use_memory=use_memory,
    )


def learn(architecture: str, *, use_memory: bool, steps: int, enough: float = 1.0, seed: int = 0) -> Score:
    """Train for these steps, or until the held-out accuracy on far pairs is enough."""
    model = build(architecture, use_memory, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    for step, task in enumerate(training_tasks(seed + 1), start=1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / WARMUP)
        token_losses(*answers(model, task)).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % SCORE_INTERVAL == 0 or step == steps:
            far = far_accuracy(model)
            if far >= enough or step == steps:
                return Score(far, step)
    raise AssertionError("tasks have no end")
