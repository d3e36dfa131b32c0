"""Associative recall: pairs of symbols are shown once, and each value must be said when its key comes again.

What lies farther back than attention reaches can be said by a memory alone: keys come once each and values are drawn
independently of each other, so that a model without memory can do no better than guess one of 32.
"""

from __future__ import annotations

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
MASTERED, LONGEST_STAGE = 0.85, 200
"""A stage ends once this share of its answers has lately been right, or after so many steps: the model without memory
cannot master the longer ones, and must see them all the same."""
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


class Curriculum:
    """Which task comes next, given how the last were answered."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.stages = iter(STAGES)
        self.begin_stage()

    def begin_stage(self) -> None:
        self.pairs = next(self.stages)
        self.accuracy, self.steps = 0.0, 0

    def next_task(self) -> Task:
        return draw_task(self.generator, min(QUERIES // self.pairs, LARGEST_BATCH), self.pairs)

    def answered(self, accuracy: float) -> None:
        """The share of right answers to the task that came last."""
        self.accuracy += 0.1 * (accuracy - self.accuracy)
        self.steps += 1
        if self.pairs < PAIRS and (self.accuracy > MASTERED or self.steps == LONGEST_STAGE):
            self.begin_stage()


def build(architecture: str, use_memory: bool, seed: int) -> LanguageModel:
    """Attention as short as the chunks of the memory allow; the model that is compared has none of the latter."""
    torch.manual_seed(seed)
    return lockstep.build(
        architecture,
        vocab_size=2 * SYMBOLS,
        max_length=4 * PAIRS,
        dim=64,
        depth=DEPTH,
        heads=1,
        chunk=2,
        segment=WINDOW,
        window=WINDOW,
        use_memory=use_memory,
    )


def learn(architecture: str, *, use_memory: bool, steps: int, enough: float = 1.0, seed: int = 0) -> Score:
    """Train for these steps, or until the held-out accuracy on far pairs is enough."""
    model = build(architecture, use_memory, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    curriculum = Curriculum(seed + 1)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / WARMUP)
        logits, values = answers(model, curriculum.next_task())
        token_losses(logits, values).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        curriculum.answered(float((logits.argmax(dim=-1) == values).double().mean()))
        if step % SCORE_INTERVAL == 0 and far_accuracy(model) >= enough:
            break
    return Score(far_accuracy(model), step)
