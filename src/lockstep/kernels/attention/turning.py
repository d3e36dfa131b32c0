"""Queries and keys turned by their places, and their adjoints turned back."""

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
    turns: tl.tensor,  # [2, places, HALF]: cosines and sines
    heads: int,
    time: int,
    places: int,
    given_sample: int,
    given_token: int,
    made_sample: int,
    made_token: int,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BACK: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """One program is some tokens of one sample, with all their heads."""
    tiles = tl.cdiv(time, TOKENS)
    sample, first = (tl.program_id(0) // tiles).to(tl.int64), (tl.program_id(0) % tiles) * TOKENS
    token = first + tl.arange(0, TOKENS)[:, None]
    column, still = tl.arange(0, triton.next_power_of_2(HALF))[None, :], tl.arange(0, triton.next_power_of_2(REST + 1))
    there, rest = (token < time) & (column < HALF), (token < time) & (still[None, :] < REST)
    cosine = tl.load(turns + token * HALF + column, mask=there, other=0.0)
    sine = tl.load(turns + (places + token) * HALF + column, mask=there, other=0.0)
    if BACK:
        sine = -sine
    given += sample * given_sample + token * given_token
    made += sample * made_sample + token * made_token
    for _ in range(heads):
        x = tl.load(given + column, mask=there).to(tl.float32)
        y = tl.load(given + HALF + column, mask=there).to(tl.float32)
        tl.store(made + column, (x * cosine - y * sine).to(made.dtype.element_ty), mask=there)
        tl.store(made + HALF + column, (y * cosine + x * sine).to(made.dtype.element_ty), mask=there)
        if REST:
            passed = 2 * HALF + still[None, :]
            tl.store(made + passed, tl.load(given + passed, mask=rest), mask=rest)
        given += 2 * HALF + REST
        made += 2 * HALF + REST


def turn(given: Tensor, made: Tensor, turns: Tensor, width: int, *, back: bool = False) -> None:
    """`made` is filled; both [batch, time, heads × width], heads side by side, samples and tokens anywhere.

    Turns [2, places, half] are of the first places; of each head the first numbers are turned, pairs `half` apart.
    """
    (batch, time, channels), half = given.shape, turns.shape[2]
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
        REST=width - 2 * half,
        BACK=back,
        TOKENS=TOKENS,
        num_warps=4,
    )
