"""Queries and keys turned by their places, before they are compared; adjoints turned back, where they are made."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TOKENS = 32
"""Of a program: what it has of the tables serves all heads."""


@triton.jit
def turned_back(
    tile: tl.tensor,  # [TOKENS, WIDTH] in 32 bits, of one head
    turns: tl.tensor,  # [2, places, HALF]: cosines and sines
    first: int,
    places: int,
    HALF: tl.constexpr,
) -> tl.tensor:
    """The tile, whose first token is at this place; behind the last place nothing turns."""
    TOKENS: tl.constexpr = tile.shape[0]
    PARTS: tl.constexpr = tile.shape[1] // (2 * HALF)
    token, part = first + tl.arange(0, TOKENS)[:, None, None], tl.arange(0, PARTS)[None, :, None]
    at, there = turns + token * HALF + tl.arange(0, HALF)[None, None, :], (part == 0) & (token < places)
    cosine = tl.load(at, mask=there, other=1.0)
    sine = tl.load(at + places * HALF, mask=there, other=0.0)
    x, y = tl.split(tile.reshape(TOKENS, PARTS, 2, HALF).permute(0, 1, 3, 2))
    both = tl.join(x * cosine + y * sine, y * cosine - x * sine)
    return both.permute(0, 1, 3, 2).reshape(TOKENS, tile.shape[1])


@triton.jit
def turn_kernel(
    given: tl.tensor,  # [batch, time, heads × WIDTH]
    made: tl.tensor,  # the same, in one piece: what comes out
    turns: tl.tensor,  # [2, places, HALF]: cosines and sines
    heads: int,
    time: int,
    places: int,
    sample_stride: int,
    token_stride: int,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """One program is some tokens of one sample, with all their heads."""
    tiles = tl.cdiv(time, TOKENS)
    sample, first = (tl.program_id(0) // tiles).to(tl.int64), (tl.program_id(0) % tiles) * TOKENS
    token = first.to(tl.int64) + tl.arange(0, TOKENS)[:, None]
    column, still = tl.arange(0, HALF)[None, :], tl.arange(0, triton.next_power_of_2(REST + 1))[None, :]
    there, rest = token < time, (token < time) & (still < REST)
    cosine = tl.load(turns + token * HALF + column, mask=there, other=0.0)
    sine = tl.load(turns + (places + token) * HALF + column, mask=there, other=0.0)
    given += sample * sample_stride + token * token_stride
    made += (sample * time + token) * heads * (2 * HALF + REST)
    for _ in range(heads):
        x = tl.load(given + column, mask=there).to(tl.float32)
        y = tl.load(given + HALF + column, mask=there).to(tl.float32)
        tl.store(made + column, (x * cosine - y * sine).to(made.dtype.element_ty), mask=there)
        tl.store(made + HALF + column, (y * cosine + x * sine).to(made.dtype.element_ty), mask=there)
        if REST:
            passed = 2 * HALF + still
            tl.store(made + passed, tl.load(given + passed, mask=rest), mask=rest)
        given += 2 * HALF + REST
        made += 2 * HALF + REST


def turn(given: Tensor, turns: Tensor) -> Tensor:
    """[batch, heads, time, width] turned, heads side by side in both, samples and tokens of the first anywhere.

    Turns [2, places, half] are of the first places; of each head the first numbers are turned, pairs `half` apart, a
    power of two.
    """
    (batch, heads, time, width), half = given.shape, turns.shape[2]
    made = given.new_empty(batch, time, heads, width)
    turn_kernel[(batch * -(-time // TOKENS),)](
        given,
        made,
        turns,
        heads,
        time,
        turns.shape[1],
        given.stride(0),
        given.stride(2),
        HALF=half,
        REST=width - 2 * half,
        TOKENS=TOKENS,
        num_warps=4,
    )
    return made.transpose(1, 2)
