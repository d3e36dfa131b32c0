"""Our kernels for the recurrence of `lockstep.models.recurrences.selective`: where they run, and what they are given.

They compute in 32 bits as the torch form does, from tokens of 16 or 32 bits, which is what they read and write most of.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.kernels.backends import ours_may_run

D_STATES = (8, 16, 32, 64)
TILE = 512
"""States that a program has at a time, 16 to a thread; channels come in whole blocks of them."""
TOKENS = (torch.bfloat16, torch.float32)


def takes(keys: Tensor, values: Tensor, state: Tensor) -> bool:
    """Whether these kernels should run on keys [batch, time, d_state] and values [batch, time, channels]."""
    if not ours_may_run(values):
        return False
    if state.dtype is not torch.float32 or keys.dtype not in TOKENS or values.dtype not in TOKENS:
        return False
    d_state, channels = state.shape[1:]
    return values.shape[1] > 1 and d_state in D_STATES and channels % (TILE // d_state) == 0


def run(
    queries: Tensor, keys: Tensor, values: Tensor, rate: Tensor, decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """As the torch form; tokens are taken in the precision they come in."""
    # Triton is needed where it is used alone.
    from lockstep.kernels.recurrences.selective_operator import selective

    exact = (x.float().contiguous() for x in (rate, decay, state))
    reads, last, _ = selective(*(x.contiguous() for x in (queries, keys, values)), *exact)
    return reads, last
