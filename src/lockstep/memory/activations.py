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


def with_slope(z: Tensor, kind: Activation) -> tuple[Tensor, Tensor]:
    """The activation and its first derivative."""
    if kind == "relu":
        return z.relu(), (z > 0).to(z.dtype)
    gate, rise = gate_and_rise(z, kind)
    value = z * gate
    # σ(i) + z σ'(i) i', with σ' = σ (1 - σ).
    return value, torch.addcmul(gate, value, (1 - gate) * rise)


def with_slope_and_curve(z: Tensor, kind: Activation) -> tuple[Tensor, Tensor, Tensor]:
    """The activation and its first two derivatives."""
    if kind == "relu":
        return *with_slope(z, kind), torch.zeros_like(z)
    gate, rise = gate_and_rise(z, kind)
    value = z * gate
    left = 1 - gate
    turn = left * rise
    slope = torch.addcmul(gate, value, turn)
    # Twice σ' i', then z times (σ'' i'² + σ' i''), with σ'' = σ' (1 - 2σ).
    curve = (gate * turn).mul_(2).addcmul_(value * turn, rise * (left - gate))
    if kind == "gelu":
        curve.addcmul_(value * left, z, value=6 * RATE * CUBIC)
    return value, slope, curve


def gate_and_rise(z: Tensor, kind: Activation) -> tuple[Tensor, Tensor | float]:
    """The sigmoid and the slope of its argument."""
    if kind == "silu":
        return z.sigmoid(), 1.0
    square = z * z
    inner = square.mul(RATE * CUBIC).add_(RATE).mul_(z)
    return inner.sigmoid_(), square.mul_(3 * RATE * CUBIC).add_(RATE)
