"""Where our kernels make a memory's rows: of bfloat16 projections on a CUDA device. All else stays with torch."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.kernels.backends import ours_may_run

FEWEST, MOST = 2, 8
"""Taps of a convolution."""
WIDEST = 128
"""Of heads, whose widths are powers of two."""


def takes(projected: Tensor, width: int, taps: int) -> bool:
    """Whether these kernels should run on projections [batch, time, parts × heads × width]."""
    lowered = projected.dtype is torch.bfloat16 and projected.shape[1] > 0
    return lowered and fits(width, taps) and ours_may_run(projected)


def fits(width: int, taps: int) -> bool:
    return FEWEST <= taps <= MOST and 0 < width <= WIDEST and width & (width - 1) == 0
