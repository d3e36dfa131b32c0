"""Activations between a memory's matrices, as `lockstep.memory.activations` has them."""

from __future__ import annotations

import triton
import triton.language as tl

RATE = tl.constexpr(1.5957691216057308)  # 2·sqrt(2/π)
CUBIC = tl.constexpr(0.044715)


@triton.jit
def gate_and_rise(z: tl.tensor, KIND: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The sigmoid and the slope of its argument."""
    if KIND == "silu":
        inner = z
        rise = tl.full(z.shape, 1.0, tl.float32)
    else:
        square = z * z
        inner = (square * (RATE * CUBIC) + RATE) * z
        rise = square * (3 * RATE * CUBIC) + RATE
    return 1.0 / (1.0 + tl.exp(-inner)), rise


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
def curve_of(z: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The second derivative."""
    if KIND == "relu":
        return tl.zeros_like(z)
    gate, rise = gate_and_rise(z, KIND)
    left = 1.0 - gate
    turn = left * rise
    curve = 2.0 * gate * turn + z * gate * turn * rise * (left - gate)
    if KIND == "gelu":
        curve += z * gate * left * z * (6 * RATE * CUBIC)
    return curve
