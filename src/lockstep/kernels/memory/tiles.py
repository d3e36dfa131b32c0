"""Tiles: how kernels here lay out tokens, and multiply them.

Tokens run along the first axis of every tile, 16 to a warp. A first operand is never the transpose of what a product
gave: Triton 3.4 to 3.7.0 gets that wrong on Hopper in 16 bits. Where such a transpose is wanted it is a product of its
own, or goes through memory.

Tiles come and go by descriptors, which need one address for a whole tile: addresses of every thread's own would fill
half of the registers. What a kernel writes and reads again goes by `place`, in the order of the program.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter has no products of bfloat16: it multiplies their bits."""


@triton.jit
def product(a: tl.tensor, b: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """a b, added up in 32 bits; PRECISION is for operands of 32 bits."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def added(total: tl.tensor, a: tl.tensor, b: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """total + a b."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def filled(like: tl.tensor, value: tl.constexpr) -> tl.tensor:
    """A tile of one number, in the shape of another, and in Gluon also in its layout."""
    return tl.where(like == like, value, value)


@triton.jit
def place(stride: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """Offsets of a tile [ROWS, COLUMNS] whose rows are `stride` apart."""
    return tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def turned(stride: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """The same offsets as a tile [COLUMNS, ROWS]."""
    return tl.arange(0, ROWS)[None, :] * stride + tl.arange(0, COLUMNS)[:, None]


@triton.jit
def loaded(tokens: tl.tensor_descriptor, sample: int, head: int, tile: int, TOKENS: tl.constexpr) -> tl.tensor:
    """A tile [TOKENS, WIDTH] of a tensor [batch, heads, time, WIDTH]."""
    return tokens.load([sample, head, tile * TOKENS, 0]).reshape(TOKENS, tokens.block_shape[3])


@triton.jit
def stored(tokens: tl.tensor_descriptor, tile: tl.tensor, sample: int, head: int, first: int) -> None:
    """The way back, in the tensor's precision."""
    tokens.store([sample, head, first, 0], tile.to(tokens.dtype).reshape(tokens.block_shape))
