"""Activations between a memory's matrices, as `lockstep.memory.activations` has them."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import INTERPRETED, filled

RATE = tl.constexpr(1.5957691216057308)  # 2·sqrt(2/π)
CUBIC = tl.constexpr(0.044715)


@triton.jit
def reciprocal(x: tl.tensor) -> tl.tensor:
    """1 / x to the last bit but one, for x from 1 to infinity: a division minds what does not occur here."""
    if INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, True, 1)


@triton.jit
def gate_and_rise(z: tl.tensor, KIND: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The sigmoid and the slope of its argument."""
    if KIND == "silu":
        inner = z
        rise = filled(z, 1.0)
    else:
        square = z * z
        inner = (square * (RATE * CUBIC) + RATE) * z
        rise = square * (3 * RATE * CUBIC) + RATE
    return reciprocal(1.0 + tl.exp(-inner)), rise


@triton.jit
def activate(z: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    if KIND == "relu":
        return tl.maximum(z, 0.0)
    gate, _ = gate_and_rise(z, KIND)
    return z * gate


@triton.jit
def slope_of(z: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The first derivative."""
    if KIND == "relu":
        return tl.where(z > 0, 1.0, 0.0)
    gate, rise = gate_and_rise(z, KIND)
    return gate + z * gate * (1.0 - gate) * rise


@triton.jit
def activated_and_slope(z: tl.tensor, KIND: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Both at once."""
    if KIND == "relu":
        return tl.maximum(z, 0.0), tl.where(z > 0, 1.0, 0.0)
    gate, rise = gate_and_rise(z, KIND)
    x = z * gate
    return x, gate + x * (1.0 - gate) * rise


@triton.jit
def curve_of(z: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The second derivative."""
    if KIND == "relu":
        return filled(z, 0.0)
    gate, rise = gate_and_rise(z, KIND)
    left = 1.0 - gate
    turn = left * rise
    curve = 2.0 * gate * turn + z * gate * turn * rise * (left - gate)
    if KIND == "gelu":
        curve += z * gate * left * z * (6 * RATE * CUBIC)
    return curve
