"""Our kernels for causal attention in a window, with tokens that everybody sees: where they run, what they are given.

They multiply in 16 bits with 32-bit sums, as flex_attention does, whose place they take. That knows blocks of 128 keys
alone, and so computes many that a window leaves out.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

WIDTHS = (16, 32, 64, 128)
"""Numbers of a head."""
MOST = 16
"""Persistent tokens."""
INSTALLED = importlib.util.find_spec("triton") is not None


def takes(queries: Tensor, persistent: int) -> bool:
    """Whether these kernels should run on queries [batch, heads, time, width]."""
    if queries.device.type != "cuda" or queries.dtype is not torch.bfloat16:
        return False
    return queries.shape[-1] in WIDTHS and persistent <= MOST and INSTALLED


def run(queries: Tensor, keys: Tensor, values: Tensor, prefix: tuple[Tensor, ...], window: int) -> Tensor:
    """As `Attention.in_blocks`: each query sees the prefix and the last `window` keys, its own included.

    Queries [batch, heads, time, width], keys and values [batch, kv_heads, time, width], and of the prefix, where there
    is one, [kv_heads, persistent, width] each.
    """
    # Triton is needed where it is used alone.
    from lockstep.kernels.attention.operator import window as windowed

    own = prefix or (keys.new_empty(keys.shape[1], 0, keys.shape[3]),) * 2
    given = (x.to(queries.dtype) for x in (keys, values, *own))
    mixed: Tensor = windowed(queries, *given, window)[0]
    return mixed
