"""One token of a head: its row, made of what is projected of it and of what came before, and the tail after it."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.activations import activate
from lockstep.kernels.rows.walking import convolved, extended


@triton.jit
def tail_of(tail: tl.tensor, channels: int, WIDTH: tl.constexpr, TAPS: tl.constexpr) -> tl.tuple:
    """What came before, TAPS - 1 times [1, WIDTH], which lie `channels` apart."""
    before = ()
    for tap in tl.static_range(TAPS - 1):
        before = extended(before, tl.load(tail + tap * channels + tl.arange(0, WIDTH)[None, :]))
    return before


@triton.jit
def row_of(x: tl.tensor, before: tl.tuple, taps: tl.tuple, offset: tl.tensor, TAPS: tl.constexpr) -> tl.tensor:
    """[1, WIDTH] in 32 bits, of any length."""
    return activate(convolved(before, x, taps, offset, TAPS), "silu")


@triton.jit
def put_tail(
    tail: tl.tensor, before: tl.tuple, x: tl.tensor, channels: int, WIDTH: tl.constexpr, TAPS: tl.constexpr
) -> None:
    """Over what came before, which everybody must have read."""
    wide = tl.arange(0, WIDTH)[None, :]
    for tap in tl.static_range(TAPS - 2):
        tl.store(tail + tap * channels + wide, before[tap + 1])
    tl.store(tail + (TAPS - 2) * channels + wide, x.to(tail.dtype.element_ty))
