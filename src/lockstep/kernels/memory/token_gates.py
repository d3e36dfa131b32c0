"""The gates of one token of a head, made of what the layer is given, as `NeuralMemory.gate_values` makes them."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.rows.walking import extended

KINDS = tl.constexpr(4)
"""Keep, rate, momentum and threshold, in this order; all but the rate may be missing."""


@triton.jit
def kinds_of(
    DECAY: tl.constexpr, MOMENTUM: tl.constexpr, THRESHOLD: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Each kind [KINDS], how many of those before it are there, and whether it is."""
    kind = tl.arange(0, KINDS)
    before = tl.where(kind > 1, 1, 0)
    if DECAY:
        before += tl.where(kind > 0, 1, 0)
    if MOMENTUM:
        before += tl.where(kind > 2, 1, 0)
    there = (kind == 1) | ((kind == 0) & DECAY) | ((kind == 2) & MOMENTUM) | ((kind == 3) & THRESHOLD)
    return kind, before, there


@triton.jit
def linear_of(
    weight: tl.tensor,  # [gates × heads, DIM]
    bias: tl.tensor,  # [gates × heads]
    head: tl.tensor,
    heads: int,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    DECAY: tl.constexpr,
    MOMENTUM: tl.constexpr,
    THRESHOLD: tl.constexpr,
) -> tl.tuple:
    """The head's share of a linear map: its bias [KINDS], then its weights in tiles [KINDS, BLOCK]."""
    _, before, there = kinds_of(DECAY, MOMENTUM, THRESHOLD)
    row = before * heads + head
    found = extended((), tl.load(bias + row, mask=there, other=0.0).to(tl.float32))
    for start in tl.static_range(0, DIM, BLOCK):
        where = start + tl.arange(0, BLOCK)
        mask = there[:, None] & (where < DIM)[None, :]
        found = extended(found, tl.load(weight + row[:, None] * DIM + where[None, :], mask=mask, other=0.0))
    return found


@triton.jit
def gates_of(
    x: tl.tensor,  # [DIM]
    linear: tl.tuple,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    DECAY: tl.constexpr,
    MOMENTUM: tl.constexpr,
    THRESHOLD: tl.constexpr,
    LARGEST: tl.constexpr,
) -> tl.tensor:
    """[KINDS] in 32 bits: without decay all is kept. What is not there means nothing."""
    logit = linear[0]
    for start in tl.static_range(0, DIM, BLOCK):
        where = start + tl.arange(0, BLOCK)
        numbers = tl.load(x + where, mask=where < DIM, other=0.0).to(tl.float32)
        logit += tl.sum(linear[1 + start // BLOCK].to(tl.float32) * numbers[None, :], axis=1)
    kind, _, _ = kinds_of(DECAY, MOMENTUM, THRESHOLD)
    small = tl.exp(-tl.abs(logit))
    value = tl.where(logit >= 0, 1.0, small) / (1.0 + small)
    value *= tl.where(kind == 1, LARGEST, 1.0)
    value = tl.where(kind == 3, tl.maximum(logit, 0.0) + tl.log(1.0 + small), value)
    return value if DECAY else tl.where(kind == 0, 1.0, value)


@triton.jit
def one_of(gates: tl.tensor, which: tl.constexpr) -> tl.tensor:
    """A number."""
    return tl.sum(tl.where(tl.arange(0, KINDS) == which, gates, 0.0), axis=0)
