"""Our kernels for the recurrence of `lockstep.models.recurrences.decayed`: where they run, and what they are given.

They compute in 16 bits with 32-bit sums and states, and take the torch form's place under bfloat16 autocast on a CUDA
device. Whatever is computed in full precision stays with torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.kernels.backends import ours_may_run

CHUNK = 64
"""Tokens worked on as one: times are whole chunks."""
LONG_CHUNK = 128
"""The same where there are half as many states to be written and read then, and where that is worth it."""
KEY_DIMS = (64, 128, 256)
WIDEST = 512
"""Of values."""
MULTIPLE = 64
"""Numbers in a block of a value: the rest of the last one is filled up with zeros. Blocks of 32 give wrong numbers in
16 bits on Hopper with Triton 3.6."""


def takes(keys: Tensor, values: Tensor) -> bool:
    """Whether these kernels should run on keys [batch, groups, time, key_dim] and values: of whole chunks alone."""
    fits = keys.shape[-1] in KEY_DIMS and values.shape[-1] <= WIDEST
    return fits and keys.shape[2] % CHUNK == 0 and lowered(values)


def lowered(tokens: Tensor) -> bool:
    """Whether tokens are to be computed with in 16 bits, by kernels of ours."""
    lower = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    return lower is torch.bfloat16 and ours_may_run(tokens)


def run(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    log_keep: Tensor | None,
    state: Tensor,
    low: torch.dtype = torch.bfloat16,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """As the torch form, from tokens rounded to `low`, as are the reads; without a chunk, by one that suits them."""
    # Triton is needed where it is used alone.
    from lockstep.kernels.recurrences.operator import decayed

    batch, heads, time, width = values.shape
    if log_keep is None:
        log_keep = values.new_zeros(batch, heads, time)
    missing = -width % MULTIPLE
    if missing:
        values, state = F.pad(values, (0, missing)), F.pad(state, (0, missing))
    reads, after, _ = decayed(
        *(token_wise(x, low) for x in (queries, keys, values)),
        log_keep.float().expand(batch, -1, -1).contiguous(),
        state.float().contiguous(),
        chunk or suitable_chunk(keys, values, low),
    )
    return reads[..., :width].transpose(1, 2), after[..., :width]


def suitable_chunk(keys: Tensor, values: Tensor, low: torch.dtype) -> int:
    """A long one where a state is more than the tokens of a short one; 32 bits leave no room for its tiles."""
    (groups, time, key_dim), (heads, width) = keys.shape[1:], values.shape[1::2]
    outweighed = heads * key_dim * width > CHUNK * (2 * groups * key_dim + heads * width)
    return LONG_CHUNK if outweighed and time % LONG_CHUNK == 0 and low.itemsize == 2 else CHUNK


def token_wise(x: Tensor, low: torch.dtype) -> Tensor:
    """[batch, heads, time, width] to [batch, time, heads, width] in one piece, as a projection left it."""
    return x.transpose(1, 2).to(low).contiguous()
