"""Our kernels for the rule of `lockstep.models.recurrences.delta`: where they run, and what they are given.

They compute in 16 bits with 32-bit sums and states, and take the torch form's place under bfloat16 autocast on a CUDA
device. Whatever is computed in full precision stays with torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.kernels.recurrences.decayed import CHUNK, MULTIPLE, WIDEST, lowered, token_wise

WIDEST_KEY = 256


def takes(keys: Tensor, values: Tensor) -> bool:
    """Whether these kernels should run on keys [batch, heads, time, key_dim] and values: of whole chunks alone."""
    fits = keys.shape[-1] <= WIDEST_KEY and values.shape[-1] <= WIDEST
    return fits and keys.shape[2] % CHUNK == 0 and lowered(values)


def run(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    rate: Tensor,
    log_keep: Tensor | None,
    state: Tensor,
    low: torch.dtype = torch.bfloat16,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """As the torch form, from tokens rounded to `low`."""
    # Triton is needed where it is used alone.
    from lockstep.kernels.recurrences.delta_operator import delta

    key_dim, width = state.shape[2:]
    key_filling, filling = key_block(key_dim) - key_dim, -width % MULTIPLE
    if key_filling:
        queries, keys = (F.pad(x, (0, key_filling)) for x in (queries, keys))
    if filling:
        values = F.pad(values, (0, filling))
    if key_filling or filling:
        state = F.pad(state, (0, filling, 0, key_filling))
    reads, after, *_ = delta(
        *(token_wise(x, low) for x in (queries, keys, values)),
        rate.float().contiguous(),
        torch.zeros_like(rate, dtype=torch.float32) if log_keep is None else log_keep.float().contiguous(),
        state.float().contiguous(),
        chunk,
    )
    return reads[..., :width].transpose(1, 2), after[:, :, :key_dim, :width]


def key_block(key_dim: int) -> int:
    """Numbers in a key once it is filled up with zeros: a power of two, as tiles measure, and no less than a block."""
    return max(MULTIPLE, 1 << (key_dim - 1).bit_length())
