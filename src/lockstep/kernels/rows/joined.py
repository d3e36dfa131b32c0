"""Where our kernels join what attention and a memory say: texts in bfloat16 on a CUDA device. All else is torch's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.kernels.backends import ours_may_run

WIDTHS = (16, 32, 64, 128)
"""Of heads."""


def takes(attended: Sequence[Tensor], reads: Sequence[Tensor | None]) -> bool:
    """Whether these kernels should run on pieces [batch, time, dim], and reads [batch, time, heads, width] of each."""
    return all(map(suits, attended, reads))


def suits(attended: Tensor, reads: Tensor | None) -> bool:
    """Single tokens too: a compiler has two sums for them, and a kernel for each."""
    if reads is None or reads.dtype is not torch.bfloat16 or not ours_may_run(reads):
        return False
    return attended.dtype in (torch.bfloat16, torch.float32) and reads.shape[-1] in WIDTHS
