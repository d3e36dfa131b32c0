"""What follows the last matrix: norm, residual and inner loss, as `lockstep.memory.structures` has them.

Tiles hold a token along one axis and the width along AXIS; gain and shift are shaped to go along with them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.biases import output_gradient, through_gradient
from lockstep.kernels.memory.tiles import filled

EPSILON = tl.constexpr(1e-5)


@triton.jit
def mean(x: tl.tensor, AXIS: tl.constexpr) -> tl.tensor:
    return tl.sum(x, AXIS, keep_dims=True) / x.shape[AXIS]


@triton.jit
def normalised(z: tl.tensor, NORM: tl.constexpr, AXIS: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The normal rows and one over their standard deviation; the rows themselves where there is no norm."""
    if not NORM:
        return z, mean(z, AXIS) * 0.0 + 1.0
    centred = z - mean(z, AXIS)
    scale = tl.rsqrt(mean(centred * centred, AXIS) + EPSILON)
    return centred * scale, scale


@triton.jit
def through_norm(
    bar: tl.tensor, normal: tl.tensor, scale: tl.tensor, NORM: tl.constexpr, AXIS: tl.constexpr
) -> tl.tensor:
    """The adjoint before the norm, given the one after it; this map is its own transpose."""
    if not NORM:
        return bar
    return (bar - mean(bar, AXIS) - normal * mean(bar * normal, AXIS)) * scale


@triton.jit
def said(
    normal: tl.tensor, row: tl.tensor, gain: tl.tensor, shift: tl.tensor, NORM: tl.constexpr, RESIDUAL: tl.constexpr
) -> tl.tensor:
    """What the memory says to the key or query `row`."""
    if NORM:
        normal = normal * gain + shift
    if RESIDUAL:
        normal += row
    return normal


@triton.jit
def last_error(
    normal: tl.tensor,
    scale: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    gain: tl.tensor,
    shift: tl.tensor,
    threshold: tl.tensor,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    P: tl.constexpr,
    AXIS: tl.constexpr,
) -> tl.tensor:
    """The gradient at the output of the last matrix."""
    error = said(normal, key, gain, shift, NORM, RESIDUAL) - value
    gradient = output_gradient(error, threshold, BIAS, P, AXIS)
    if NORM:
        gradient = through_norm(gradient * gain, normal, scale, NORM, AXIS)
    return gradient


@triton.jit
def through_last_error(
    bar: tl.tensor,
    normal: tl.tensor,
    scale: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    gain: tl.tensor,
    shift: tl.tensor,
    threshold: tl.tensor,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    P: tl.constexpr,
    AXIS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Adjoints from that of the last error: of the output, of the error before the loss, of gain and of threshold.

    The last two are entry by entry, to be added up. The error goes as J g with g = gain * φ(r), J the norm's own
    derivative, which is symmetric, and r = gain * n + shift + key - value; see `squared_error_after_norm` of the torch
    twin.
    """
    error = said(normal, key, gain, shift, NORM, RESIDUAL) - value
    if not NORM:
        error_bar, threshold_bar = through_gradient(bar, error, threshold, BIAS, P, AXIS)
        return error_bar, error_bar, filled(bar, 0.0), threshold_bar
    gradient = output_gradient(error, threshold, BIAS, P, AXIS)
    pulled = gradient * gain
    pulled_bar = through_norm(bar, normal, scale, NORM, AXIS)
    error_bar, threshold_bar = through_gradient(pulled_bar * gain, error, threshold, BIAS, P, AXIS)
    last = through_norm(pulled, normal, scale, NORM, AXIS)
    normal_bar = error_bar * gain - scale * (bar * mean(pulled * normal, AXIS) + pulled * mean(bar * normal, AXIS))
    # J's factor, one over the standard deviation, moves with the output too.
    output_bar = through_norm(normal_bar, normal, scale, NORM, AXIS) - normal * mean(bar * last, AXIS) * scale
    return output_bar, error_bar, pulled_bar * gradient + error_bar * normal, threshold_bar
