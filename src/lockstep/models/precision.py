"""Reading and learning in 16 bits."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn


def as_in_training(model: nn.Module) -> AbstractContextManager[Any]:
    """For many tokens at once: kernels take them from a model in bfloat16 under the autocast that it is trained under.

    On a GPU; elsewhere there are no kernels, and it reads in its weights' own precision.
    """
    weight = next(model.parameters())
    if weight.device.type != "cuda" or weight.dtype is not torch.bfloat16:
        return nullcontext()
    return torch.autocast(weight.device.type, weight.dtype)


def autocast_to(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """For one forward pass, whose products are to be of this kind; None leaves them as they are.

    Entered anew for each: until it is left, torch goes on with the weights as it has once cast them.
    """
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)
