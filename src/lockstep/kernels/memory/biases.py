"""The gradient of the inner loss at the memory's output and its derivative, as `lockstep.memory.biases` has them.

Tiles hold a token along one axis and the width along AXIS, over which norms are taken.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import filled

SMOOTH = tl.constexpr(1e-6)
TINY = tl.constexpr(2.0**-126)
"""The least normal number of 32 bits, and not a digit less: Triton would take it, and what it meets, for 64 bits."""


@triton.jit
def length(error: tl.tensor, AXIS: tl.constexpr) -> tl.tensor:
    return tl.sqrt(tl.sum(error * error, AXIS, keep_dims=True) + TINY)


@triton.jit
def raised(base: tl.tensor, POWER: tl.constexpr) -> tl.tensor:
    """A base that is positive, or zero under a positive power."""
    if POWER == 1.0:
        return base
    if POWER == 0.0:
        return filled(base, 1.0)
    return tl.where(base > 0, tl.exp(tl.log(tl.maximum(base, TINY)) * POWER), 0.0)


@triton.jit
def output_gradient(
    error: tl.tensor, threshold: tl.tensor, BIAS: tl.constexpr, P: tl.constexpr, AXIS: tl.constexpr
) -> tl.tensor:
    """From the error of a read; BIAS is l2, lp, or one of Huber's forms: norm, coordinate, switch."""
    if BIAS == "l2":
        return error
    if BIAS == "lp":
        if P < 2.0:
            return error * raised(error * error + SMOOTH, (P - 2.0) / 2.0)
        sign = tl.where(error > 0, 1.0, tl.where(error < 0, -1.0, 0.0))
        return sign * raised(tl.abs(error), P - 1.0)
    if BIAS == "coordinate":
        return tl.minimum(tl.maximum(error, -threshold), threshold)
    norm = length(error, AXIS)
    if BIAS == "norm":
        beyond = threshold * error / norm
    else:
        beyond = threshold * error / tl.sqrt(error * error + SMOOTH)
    return tl.where(norm <= threshold, error, beyond)


@triton.jit
def through_gradient(
    bar: tl.tensor, error: tl.tensor, threshold: tl.tensor, BIAS: tl.constexpr, P: tl.constexpr, AXIS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The adjoints of the error and, entry by entry, of the threshold, from that of the gradient."""
    nothing = filled(bar, 0.0)
    if BIAS == "l2":
        return bar, nothing
    if BIAS == "lp":
        if P < 2.0:
            square = error * error + SMOOTH
            factor = raised(square, (P - 2.0) / 2.0)
            return bar * (factor + (P - 2.0) * error * error * factor / square), nothing
        return bar * (P - 1.0) * raised(tl.abs(error), P - 2.0), nothing
    if BIAS == "coordinate":
        inside = tl.abs(error) <= threshold
        return tl.where(inside, bar, 0.0), tl.where(inside, 0.0, tl.where(error > 0, bar, -bar))
    norm = length(error, AXIS)
    inside = norm <= threshold
    if BIAS == "norm":
        unit = error / norm
        beyond = (bar - unit * tl.sum(bar * unit, AXIS, keep_dims=True)) * threshold / norm
    else:
        size = tl.sqrt(error * error + SMOOTH)
        unit = error / size
        beyond = bar * threshold * SMOOTH / (size * size * size)
    return tl.where(inside, bar, beyond), tl.where(inside, 0.0, bar * unit)
