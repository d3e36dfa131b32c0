"""One token of each sequence looks at a cache, and is put there: by programs that share the cache among them.

Attention of a single token is bound by the bytes of the cache. One program for each head would leave most of a device
idle, and a long cache would take as long as one multiprocessor needs for it. Around it, a step of decoding is bound by
how many kernels it has, so that turning and putting are done where the keys are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.kernels.backends import ours_may_decode

WIDTHS = (16, 32, 64, 128)
"""Numbers of a head."""
SLOTS = 64
"""Keys that a program takes at a time."""
PROGRAMS = 264
"""Enough to keep a large device busy: two for each of its multiprocessors."""


class Cache(NamedTuple):
    """Keys and values [batch, kv_heads, all slots, width], and the tokens seen [batch].

    Slots of persistent tokens come first. The others are of one row of tokens, or of two as long; token p is in slot p
    modulo their length.
    """

    keys: Tensor
    values: Tensor
    position: Tensor


def takes(qkv: Tensor, width: int) -> bool:
    """Whether these kernels should run for projections [batch, time, channels]: one token each, and no derivative."""
    known = qkv.dtype in (torch.bfloat16, torch.float32) and width in WIDTHS
    return known and ours_may_decode(qkv, qkv.shape[1])


def run(
    qkv: Tensor, said: Tensor | None, cache: Cache, rates: Tensor | None, heads: int, persistent: int, segmented: bool
) -> tuple[Tensor, Cache]:
    """What tokens read [batch, 1, heads × width] of the cache after them, and that cache, which is written over.

    Projections are [batch, 1, (heads + 2 × kv_heads) × width]; in `said` are keys and values of the first of two rows.
    A place turns queries and keys by these `rates` [pairs], if there are any. A token sees what is in the cache; where
    that is `segmented`, it sees what came since a row's first slot was filled, and places are counted from there.
    """
    # Triton is needed where it is used alone.
    from lockstep.kernels.attention.looking_operator import look_

    row = None if said is None else said[:, 0].contiguous()
    reads: Tensor = look_(qkv[:, 0].contiguous(), row, *cache, rates, heads, persistent, segmented)
    return reads[:, None], cache


class Sharing(NamedTuple):
    """How a cache is shared among programs."""

    parts: int
    tiles: int
    """Of a part, of SLOTS each."""


def sharing(batch: int, kv_heads: int, slots: int) -> Sharing:
    """As many parts as the device has room for, and one for each tile at most."""
    tiles = -(-slots // SLOTS)
    size = min(math.ceil(tiles * batch * kv_heads / PROGRAMS), tiles)
    return Sharing(-(-tiles // size), size)
