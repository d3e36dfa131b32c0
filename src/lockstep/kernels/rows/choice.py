"""Where our kernels make a memory's rows: of bfloat16 projections on a CUDA device. All else stays with torch."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from lockstep.kernels.backends import allows

FEWEST, MOST = 2, 8
"""Taps of a convolution."""
WIDEST = 128
"""Of heads, whose widths are powers of two."""
INSTALLED = importlib.util.find_spec("triton") is not None


def takes(projected: Tensor, width: int, taps: int) -> bool:
    """Whether these kernels should run on projections [batch, time, parts × heads × width]."""
    if projected.device.type != "cuda" or projected.dtype is not torch.bfloat16 or not allows("triton"):
        return False
    return fits(width, taps) and projected.shape[1] > 0 and INSTALLED


def fits(width: int, taps: int) -> bool:
    return FEWEST <= taps <= MOST and 0 < width <= WIDEST and width & (width - 1) == 0
