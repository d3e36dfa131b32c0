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
"""Keys that a program takes at a time where others share the device with it."""
PROGRAMS = 264
"""Enough to keep a large device busy: two for each of its multiprocessors."""
SHORT = 512
"""Slots of a cache that one program takes alone, and at once: fetching them takes as long as telling others of it."""
NUMBERS = 32768
"""Of keys that such a program takes at once, at most: what the registers of a multiprocessor have room for."""
EACH = 2048
"""Numbers of keys to a warp."""


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
    """Of a part."""
    slots: int
    """Of a tile, a power of two."""
    warps: int
    """Of a program."""


def sharing(batch: int, kv_heads: int, slots: int, width: int) -> Sharing:
    """Of a short cache one part, in a tile as large as can be where rows leave room for it; of a long one many."""
    rows, short = batch * kv_heads, slots <= SHORT
    large = min(max(1 << (slots - 1).bit_length(), SLOTS), NUMBERS // width)
    tile = large if short and 2 * rows <= PROGRAMS else SLOTS
    tiles = -(-slots // tile)
    size = tiles if short else max(math.ceil(tiles * rows / PROGRAMS), 1)
    return Sharing(-(-tiles // size), size, tile, min(max(tile * width // EACH, 4), 16))
