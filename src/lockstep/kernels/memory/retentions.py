"""How what is held becomes weights, and the adjoint of that, as `lockstep.memory.retentions` has them.

Tiles hold a matrix, either way round, or its rows' errors; AXIS is the one that a matrix's outputs lie along. What is
held under kl is known up to a shift of each row: adjoints are of what has none, and a single token takes any.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.biases import TINY, raised
from lockstep.kernels.memory.heads import mean

LEAST, MOST = tl.constexpr(1e-6), tl.constexpr(2.0**64)
"""What bounds lq's norm to its power: an empty memory has weights zero, not infinite."""


@triton.jit
def measure_of(
    held: tl.tensor, RETENTION: tl.constexpr, Q: tl.constexpr, SIMPLEX: tl.constexpr, AXIS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """What entries must know of a whole matrix to become weights: the largest, and a scale.

    Under kl each row has its own.
    """
    if RETENTION == "kl":
        most = tl.max(held, axis=AXIS, keep_dims=True)
        scale = SIMPLEX / tl.sum(tl.exp(held - most), axis=AXIS, keep_dims=True)
    elif RETENTION == "lq":
        most = tl.maximum(tl.max(tl.abs(held)), LEAST)
        norm = most * raised(tl.maximum(tl.sum(raised(tl.abs(held) / most, Q)), TINY), 1.0 / Q)
        # Bounded after its power, not before a division, which may be off by a bit: `through_weights` asks what is
        # bounded.
        scale = tl.minimum(tl.maximum(raised(norm, 2.0 - Q), 1.0 / MOST), 1.0 / LEAST)
    else:
        most, scale = tl.full([], 1.0, tl.float32), tl.full([], 1.0, tl.float32)
    return most, scale


@triton.jit
def measured(held: tl.tensor, most: tl.tensor, scale: tl.tensor, RETENTION: tl.constexpr) -> tl.tensor:
    """The weights at a chunk's start, also of a part of the matrix that was measured."""
    if RETENTION == "kl":
        return tl.exp(held - most) * scale
    if RETENTION == "lq":
        return held * scale
    return held


@triton.jit
def weights_and_scale(
    held: tl.tensor, RETENTION: tl.constexpr, Q: tl.constexpr, SIMPLEX: tl.constexpr, AXIS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The weights at a chunk's start, and how far they follow what is held inside of it."""
    most, scale = measure_of(held, RETENTION, Q, SIMPLEX, AXIS)
    weights = measured(held, most, scale, RETENTION)
    if RETENTION == "kl":
        scale = tl.full([], SIMPLEX / held.shape[AXIS], tl.float32)
    return weights, scale


@triton.jit
def along_weights(errors: tl.tensor, RETENTION: tl.constexpr, AXIS: tl.constexpr) -> tl.tensor:
    """What of a change changes weights; this map is its own transpose."""
    if RETENTION == "kl":
        return errors - mean(errors, AXIS)
    return errors


@triton.jit
def through_weights(
    weights_bar: tl.tensor,
    follows_bar: tl.tensor,
    follows: tl.tensor,
    base: tl.tensor,
    scale: tl.tensor,
    scale_bar: tl.tensor,
    RETENTION: tl.constexpr,
    Q: tl.constexpr,
    SIMPLEX: tl.constexpr,
    AXIS: tl.constexpr,
) -> tl.tensor:
    """The adjoint of what is held, by the weights at the chunk's start, which are `follows` + `base`, and by the scale.

    `scale_bar` is what errors have a share in, times the scale.
    """
    weights = follows + base
    if RETENTION == "kl":
        shared = tl.sum(weights_bar * weights, axis=AXIS, keep_dims=True) / SIMPLEX
        return weights * (weights_bar - shared)
    scale_bar += tl.sum(weights_bar * weights + follows_bar * follows)
    # Of the logarithm of lq's norm, which weights have the same of as what is held has, but for the scale.
    most = tl.maximum(tl.max(tl.abs(weights)), TINY)
    size = tl.abs(weights) / most
    slope = raised(size, Q - 1.0) / (tl.maximum(tl.sum(raised(size, Q)), 1.0) * most)
    slope = tl.where(weights < 0, -slope, slope)
    free = (scale < 1.0 / LEAST) & (scale > 1.0 / MOST)
    return scale * (weights_bar - tl.where(free, (Q - 2.0) * scale_bar, 0.0) * slope)
