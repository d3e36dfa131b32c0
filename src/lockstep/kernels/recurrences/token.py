"""One token of each sequence through a linear recurrence, as decoding asks for it: where our kernel does that.

All of them are one: what is held decays, by one number for a head or for each channel of its keys; what it already says
to the key may be taken away from the value; then the value is written, and the query reads. Derivatives there are none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.kernels.backends import ours_may_decode

WIDEST = 512
"""Of keys."""


def takes(keys: Tensor, state: Tensor) -> bool:
    """Whether it should run for keys [batch, groups, time, key_dim]: one token each, no derivative, 32-bit states."""
    known = keys.shape[-1] <= WIDEST and state.dtype is torch.float32
    return known and ours_may_decode(state, keys.shape[2])


def run(
    queries: Tensor, keys: Tensor, values: Tensor, log_keep: Tensor | None, rate: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Reads [batch, heads, 1, value_dim] in 32 bits and the state after the token, which is written over.

    queries, keys [batch, groups, 1, key_dim], values [batch, heads, 1, value_dim], log_keep [batch or 1, heads, 1] or
    [batch, heads, 1, key_dim], rate [batch, heads, 1], state [batch, heads, key_dim, value_dim]. Without log_keep
    nothing is forgotten, without rate nothing is taken away.
    """
    # Triton is needed where it is used alone.
    from lockstep.kernels.recurrences.token_operator import recur_

    tokens = (x[:, :, 0].contiguous() for x in (queries, keys, values))
    kept = None if log_keep is None else log_keep[:, :, 0].expand(len(state), *log_keep[0, :, 0].shape).contiguous()
    reads: Tensor = recur_(*tokens, kept, None if rate is None else rate[:, :, 0].contiguous(), state)
    return reads[:, :, None], state
