"""Queries and keys turned by their places, and their adjoints turned back.

A number becomes itself times a cosine, plus its partner times a sine; the tables say one and zero where nothing turns.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TOKENS = 32
"""Of a program: what it has of the tables serves all heads."""


@triton.jit
def turn_kernel(
    given: tl.tensor,  # [batch, time, heads × WIDTH]
    made: tl.tensor,  # the same: what comes out
    turns: tl.tensor,  # [2, places, WIDTH]: cosines and sines
    heads: int,
    time: int,
    places: int,
    given_sample: int,
    given_token: int,
    made_sample: int,
    made_token: int,
    HALF: tl.constexpr,
    BACK: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One program is some tokens of one sample, with all their heads."""
    tiles = tl.cdiv(time, TOKENS)
    sample, first = (tl.program_id(0) // tiles).to(tl.int64), (tl.program_id(0) % tiles) * TOKENS
    token, column = first + tl.arange(0, TOKENS)[:, None], tl.arange(0, WIDTH)[None, :]
    there = token < time
    cosine = tl.load(turns + token * WIDTH + column, mask=there, other=0.0)
    sine = tl.load(turns + (places + token) * WIDTH + column, mask=there, other=0.0)
    if BACK:
        sine = -sine
    partner = tl.where(column < HALF, column + HALF, tl.where(column < 2 * HALF, column - HALF, column))
    given += sample * given_sample + token * given_token
    made += sample * made_sample + token * made_token
    for head in range(heads):
        x = tl.load(given + head * WIDTH + column, mask=there).to(tl.float32)
        y = tl.load(given + head * WIDTH + partner, mask=there).to(tl.float32)
        tl.store(made + head * WIDTH + column, (x * cosine + y * sine).to(made.dtype.element_ty), mask=there)


def turn(given: Tensor, made: Tensor, turns: Tensor, half: int, *, back: bool = False) -> None:
    """`made` is filled; both [batch, time, heads × width], heads side by side, samples and tokens anywhere.

    Turns [2, places, width] are of the first places; of each head the first numbers are turned, pairs `half` apart.
    """
    batch, time, channels = given.shape
    width = turns.shape[2]
    turn_kernel[(batch * -(-time // TOKENS),)](
        given,
        made,
        turns,
        channels // width,
        time,
        turns.shape[1],
        given.stride(0),
        given.stride(1),
        made.stride(0),
        made.stride(1),
        HALF=half,
        BACK=back,
        TOKENS=TOKENS,
        WIDTH=width,
        num_warps=4,
    )
