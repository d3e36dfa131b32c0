"""Our kernels for the recurrence of `lockstep.models.recurrences.channel_decayed`: where they run, what they are given.

They compute in 16 bits with 32-bit sums, states and gates, and take the torch form's place under bfloat16 autocast on a
CUDA device. Whatever is computed in full precision stays with torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.kernels.recurrences.decayed import CHUNK, MULTIPLE, WIDEST, lowered, token_wise
from lockstep.kernels.recurrences.delta import WIDEST_KEY

KEY_MULTIPLE = 16
"""Numbers of a key come in so many, which the matrix units and the copies of tiles ask for."""


def takes(keys: Tensor, values: Tensor) -> bool:
    """Whether these kernels should run on keys [batch, heads, time, key_dim] and values: of whole chunks alone."""
    fits = keys.shape[-1] <= WIDEST_KEY and values.shape[-1] <= WIDEST
    return fits and keys.shape[2] % CHUNK == 0 and lowered(values)


def run(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    log_keep: Tensor,
    state: Tensor,
    low: torch.dtype = torch.bfloat16,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """As the torch form, from tokens rounded to `low`; chunks are powers of two, because they are halved."""
    # Triton is needed where it is used alone.
    from lockstep.kernels.recurrences.operator import decayed

    key_dim, width = state.shape[2:]
    key_filling, filling = -key_dim % KEY_MULTIPLE, -width % MULTIPLE
    if key_filling:
        queries, keys, log_keep = (F.pad(x, (0, key_filling)) for x in (queries, keys, log_keep))
    if filling:
        values = F.pad(values, (0, filling))
    if key_filling or filling:
        state = F.pad(state, (0, filling, 0, key_filling))
    reads, after, _ = decayed(
        *(token_wise(x, low) for x in (queries, keys, values)),
        token_wise(log_keep, torch.float32),
        state.float().contiguous(),
        chunk,
    )
    return reads[..., :width].transpose(1, 2), after[:, :, :key_dim, :width]
