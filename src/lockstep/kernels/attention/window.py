"""Our kernels for causal attention in a window, with tokens that everybody sees: where they run, what they are given.

They multiply in 16 bits with 32-bit sums, as flex_attention does, whose place they take. That knows blocks of 128 keys
alone, and so computes many that a window leaves out; and it wants heads apart, turned and joined with what all see.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.kernels.backends import ours_may_run

WIDTHS = (16, 32, 64, 128)
"""Numbers of a head."""
MOST = 16
"""Persistent tokens."""


def takes(qkv: Tensor, width: int, persistent: int, pairs: int) -> bool:
    """Whether these kernels should run on projections [batch, time, heads × width], so many pairs of which turn."""
    if qkv.dtype is not torch.bfloat16 or not ours_may_run(qkv):
        return False
    # What turns is told from what does not by the shape of a tile.
    shaped = pairs & (pairs - 1) == 0
    return width in WIDTHS and shaped and persistent <= MOST


def run(
    qkv: Tensor,
    said: Tensor | None,
    own: tuple[Tensor, Tensor],
    turns: Tensor | None,
    window: int,
) -> Tensor:
    """What is read, [batch, time, heads × width]: each query sees `own` and the last `window` keys, its own included.

    Queries, keys and values lie side by side in qkv [batch, time, (heads + 2 × kv_heads) × width]; so do, in `said`
    [batch, time, 2 × kv_heads × width], keys and values of a second row that is seen like the first. Own keys and
    values are [kv_heads, persistent, width], of which there may be none. Turns [2, places, half] are cosines and sines,
    for pairs of queries' and keys' first numbers, `half` apart.
    """
    # Triton is needed where it is used alone.
    from lockstep.kernels.attention.operator import window as windowed

    second = None if said is None else said.to(qkv.dtype)
    reads: Tensor = windowed(qkv, second, own[0].to(qkv.dtype), own[1].to(qkv.dtype), turns, window)[0]
    return reads
