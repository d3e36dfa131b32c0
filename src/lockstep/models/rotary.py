"""Rotary position embedding (Su et al., arXiv 2104.09864), halves rotated against each other."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TURN = 2 * math.pi
FAR = 105_615
"""From this angle on a GPU's cosines and sines of float32 look for its turn themselves, digit by digit."""


def rotate(x: Tensor, positions: Tensor, theta: float, dims: int | None = None, below: int | None = None) -> Tensor:
    """Turn each pair (x[i], x[i + half]) by an angle that grows with position.

    x [batch, heads, time, head_dim], positions [batch or 1, time]; only the first `dims`, an even number, are turned.
    All positions are less than `below`, if that is known.
    """
    if dims is not None and dims < x.shape[-1]:
        return torch.cat((rotate(x[..., :dims], positions, theta, None, below), x[..., dims:]), dim=-1) if dims else x
    half = x.shape[-1] // 2
    exact = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (part[:, None] for part in turns(positions, half, theta, exact, below))
    first, second = x.to(exact).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def turns(
    positions: Tensor, half: int, theta: float, dtype: torch.dtype, below: int | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles, [batch or 1, time, half]."""
    if below is not None and torch.compiler.is_compiling():
        # Looked up: a compiled kernel would compute them again for every head of every sample.
        from lockstep.models.mixers.prepared import prepared

        cos, sin = prepared(first_turns, below, half, theta, dtype, positions.device)
        return cos[positions], sin[positions]
    angles = positions[..., None].to(dtype) * speeds(half, theta, dtype, positions.device)
    if angles.is_cuda and angles.dtype == torch.float32 and (below is None or below > FAR):
        angles = within_a_turn(angles)
    return angles.cos(), angles.sin()


def within_a_turn(angles: Tensor) -> Tensor:
    """The same angles, from half a turn back to half a turn ahead."""
    exact = angles.double()
    return (exact - (exact / TURN).round() * TURN).to(angles.dtype)


def speeds(half: int, theta: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """By how much each pair is turned from one place to the next, [half]."""
    return theta ** (-torch.arange(half, device=device, dtype=dtype) / half)


def table(below: int, half: int, theta: float, device: torch.device) -> Tensor:
    """Both of the first positions as one, [2, below, half]."""
    return torch.stack(first_turns(below, half, theta, torch.float32, device))


def first_turns(below: int, half: int, theta: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of the first positions, [below, half]."""
    return turns(torch.arange(below, device=device), half, theta, dtype)
