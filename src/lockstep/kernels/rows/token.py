"""Where our kernel makes what one token brings to a memory, as decoding asks for it, and writes over the tail."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.kernels.backends import allows
from lockstep.kernels.rows.choice import INSTALLED, fits


def takes(projected: Tensor, width: int, taps: int) -> bool:
    """Whether it should run on projections [batch, time, parts × heads × width]: one token each, and no derivative.

    Whether the tail may be written over is the caller's to know.
    """
    if projected.device.type != "cuda" or not INSTALLED or not allows("triton"):
        return False
    if projected.shape[1] != 1 or torch.is_grad_enabled():
        return False
    return projected.dtype in (torch.bfloat16, torch.float32) and fits(width, taps)
