"""The loss of a prediction, token by token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
"""A target that is not supervised."""


def token_losses(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy in nats, [batch, time]; zero where the target is IGNORED.

    logits [batch, time, vocab] at each position, targets [batch, time] what stands there to be predicted.
    """
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(
        exact.flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=label_smoothing,
    ).view_as(targets)
