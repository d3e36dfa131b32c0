"""What one step of training takes: seconds, and bytes beyond the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.evaluation.live_bytes import held_bytes
from lockstep.evaluation.timing import Spread, in_mode, seconds, spread
from lockstep.models.language_model import LanguageModel
from lockstep.models.precision import autocast_to


@dataclass(frozen=True, slots=True)
class TrainingTime:
    """Forward, loss, backward and the optimizers' step of one batch."""

    length: int
    batch: int
    seconds: Spread
    peak_bytes: int
    """The most that was held at once beyond the weights: gradients, activations, and what the optimizers keep."""

    @property
    def tokens_per_second(self) -> float:
        return self.batch * self.length / self.seconds.median


def measure_training(
    model: LanguageModel,
    tokens: Tensor,
    optimizers: Sequence[torch.optim.Optimizer],
    device: torch.device,
    rounds: int = 5,
    lower: torch.dtype | None = None,
) -> TrainingTime:
    """Of tokens [batch, time], with optimizers that have not stepped yet; the model's weights change.

    What the targets are changes nothing, so the tokens themselves are predicted. Bytes are those of a second step, when
    the optimizers hold what they keep from the first. Products are of `lower` precision, if one is given.
    """

    def step() -> None:
        with autocast_to(device, lower):
            loss = model(tokens, targets=tokens).losses.mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    with in_mode(model, training=True):
        with held_bytes(device) as counted:
            step()
            counted.restart()
            step()
            peak = counted.peak
        taken = spread(seconds(step, rounds, device))
    return TrainingTime(tokens.shape[1], tokens.shape[0], taken, peak)
