"""One token of a head: its row, made of what is projected of it and of what came before, and the tail after it."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.activations import activate
from lockstep.kernels.rows.walking import extended, offset_of


@triton.jit
def convolved_before(
    tail: tl.tensor,  # TAPS - 1 times [WIDTH], `channels` apart
    weight: tl.tensor,  # TAPS times [WIDTH], `stride` apart
    bias: tl.tensor,
    column: int,
    channels: int,
    stride: int,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """What a convolution says of what came before a token, and what it multiplies the token with; [1, WIDTH] each."""
    wide = tl.arange(0, WIDTH)[None, :]
    said = offset_of(bias, column, WIDTH)
    for tap in tl.static_range(TAPS - 1):
        numbers = tl.load(weight + tap * stride + wide).to(tl.float32)
        said += tl.load(tail + tap * channels + wide).to(tl.float32) * numbers
    return said, tl.load(weight + (TAPS - 1) * stride + wide).to(tl.float32)


@triton.jit
def row_of(x: tl.tensor, said: tl.tensor, last: tl.tensor) -> tl.tensor:
    """[1, WIDTH] in 32 bits, of any length."""
    return activate(said + x.to(tl.float32) * last, "silu")


@triton.jit
def staying(tail: tl.tensor, channels: int, WIDTH: tl.constexpr, TAPS: tl.constexpr) -> tl.tuple:
    """What is left of a tail when a token is added: all but the first, [1, WIDTH] each."""
    left = ()
    for tap in tl.static_range(1, TAPS - 1):
        left = extended(left, tl.load(tail + tap * channels + tl.arange(0, WIDTH)[None, :]))
    return left


@triton.jit
def three_before(
    tail: tl.tensor, weight: tl.tensor, dim: int, stride: int, WIDTH: tl.constexpr, TAPS: tl.constexpr
) -> tl.tuple:
    """Of a query, a key and a value, `dim` apart, what `convolved_before` says: three sums, and three numbers."""
    asked, asks = convolved_before(tail, weight, None, 0, 3 * dim, stride, WIDTH, TAPS)
    tail, weight = tail + dim, weight + dim
    named, names = convolved_before(tail, weight, None, 0, 3 * dim, stride, WIDTH, TAPS)
    told, tells = convolved_before(tail + dim, weight + dim, None, 0, 3 * dim, stride, WIDTH, TAPS)
    return asked, named, told, asks, names, tells


@triton.jit
def three_staying(tail: tl.tensor, dim: int, WIDTH: tl.constexpr, TAPS: tl.constexpr) -> tl.tuple:
    """What is left of their tails."""
    query = staying(tail, 3 * dim, WIDTH, TAPS)
    key = staying(tail + dim, 3 * dim, WIDTH, TAPS)
    return query, key, staying(tail + 2 * dim, 3 * dim, WIDTH, TAPS)


@triton.jit
def put_three(
    tail: tl.tensor,
    left: tl.tuple,
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    dim: int,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
) -> None:
    """What is left of them with these behind it, over the old ones, which everybody must have read."""
    put_tail(tail, left[0], query, 3 * dim, WIDTH, TAPS)
    put_tail(tail + dim, left[1], key, 3 * dim, WIDTH, TAPS)
    put_tail(tail + 2 * dim, left[2], value, 3 * dim, WIDTH, TAPS)


@triton.jit
def put_tail(
    tail: tl.tensor, left: tl.tuple, x: tl.tensor, channels: int, WIDTH: tl.constexpr, TAPS: tl.constexpr
) -> None:
    """With the token behind it, over the old one, which everybody must have read."""
    wide = tl.arange(0, WIDTH)[None, :]
    for tap in tl.static_range(TAPS - 2):
        tl.store(tail + tap * channels + wide, left[tap])
    tl.store(tail + (TAPS - 2) * channels + wide, x.to(tail.dtype.element_ty))
