"""Where our kernels gate and normalise what Mamba-2 reads: in bfloat16 on a CUDA device. All else stays with torch."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.kernels.backends import ours_may_run

WIDEST = 4096
"""Numbers that are normalised together."""


def takes(reads: Tensor, values: Tensor, gate: Tensor, groups: int) -> bool:
    """Whether these kernels should run on reads, values and a gate [batch, time, inner], however they lie."""
    if not ours_may_run(gate):
        return False
    if any(x.dtype is not torch.bfloat16 for x in (reads, values, gate)):
        return False
    return gate.shape[1] > 0 and gate.shape[-1] // groups <= WIDEST
