"""One query of each head over a cache, which programs share: each takes some of the keys, and what they say is joined.

Attention of a single token is bound by the bytes of the cache. One program for each head would leave most of a device
idle, and a long cache would take as long as one multiprocessor needs for it.
"""

from __future__ import annotations

import importlib.util
import math

import torch
from torch import Tensor

from lockstep.kernels.backends import allows

WIDTHS = (16, 32, 64, 128)
"""Numbers of a head."""
SLOTS = 64
"""Keys that a program takes at a time."""
PROGRAMS = 264
"""Enough to keep a large device busy: two for each of its multiprocessors."""
INSTALLED = importlib.util.find_spec("triton") is not None


def takes(queries: Tensor) -> bool:
    """Whether these kernels should run for queries [batch, heads, time, width]: one token each, and no derivative."""
    if queries.device.type != "cuda" or queries.shape[2] != 1 or torch.is_grad_enabled():
        return False
    fits = queries.dtype in (torch.bfloat16, torch.float32) and queries.shape[3] in WIDTHS
    return fits and INSTALLED and allows("triton")


def run(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """What queries [batch, heads, 1, width] read of keys and values [batch, kv_heads, slots, width].

    The mask [batch or 1, 1, 1, slots] says which slots are seen; each query sees one at least.
    """
    # Triton is needed where it is used alone.
    from lockstep.kernels.attention.looking_operator import look

    seen = mask.expand(len(queries), -1, -1, -1)[:, 0, 0].contiguous()
    reads: Tensor = look(queries[:, :, 0].contiguous(), keys.contiguous(), values.contiguous(), seen)
    return reads[:, :, None]


def parts(batch: int, kv_heads: int, slots: int) -> tuple[int, int]:
    """Into how many parts a cache is cut, and how many tiles each has."""
    tiles = -(-slots // SLOTS)
    size = max(math.ceil(tiles * batch * kv_heads / PROGRAMS), 1)
    return -(-tiles // size), size
