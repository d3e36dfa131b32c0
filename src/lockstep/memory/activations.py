"""Activations between a memory's matrices, with the two derivatives that learning and learning to learn need.

gelu (in its tanh form) and silu are both z·σ(i(z)): with i = 2·sqrt(2/π)·(z + 0.044715 z³) for the first and i = z for
the second.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.memory.spec import Activation

RATE, CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715


def activate(z: Tensor, kind: Activation) -> Tensor:
    if kind == "gelu":
        return F.gelu(z, approximate="tanh")
    return F.silu(z) if kind == "silu" else F.relu(z)


def slope(z: Tensor, kind: Activation) -> Tensor:
    """The first derivative."""
    if kind == "relu":
        return (z > 0).to(z.dtype)
    inner, inner_slope, _ = inside(z, kind)
    gate = inner.sigmoid_()
    return gate + z * inner_slope * gate * (1 - gate)


def slope_and_curve(z: Tensor, kind: Activation) -> tuple[Tensor, Tensor]:
    """The first and the second derivative."""
    if kind == "relu":
        return slope(z, kind), torch.zeros_like(z)
    inner, inner_slope, inner_curve = inside(z, kind)
    gate = inner.sigmoid_()
    bend = gate * (1 - gate)
    rise = bend * inner_slope
    curve = 2 * rise + z * (rise * inner_slope * (1 - 2 * gate) + bend * inner_curve)
    return torch.addcmul(gate, z, rise), curve


def inside(z: Tensor, kind: Activation) -> tuple[Tensor, Tensor | float, Tensor | float]:
    """The argument of the sigmoid and its two derivatives."""
    if kind == "silu":
        return z.clone(), 1.0, 0.0
    square = z.square()
    inner = square.mul(RATE * CUBIC).add_(RATE).mul_(z)
    return inner, square.mul_(3 * RATE * CUBIC).add_(RATE), z * (6 * RATE * CUBIC)
