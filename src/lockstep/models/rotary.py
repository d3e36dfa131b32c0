"""Rotary position embedding (Su et al., arXiv 2104.09864), halves rotated against each other."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, positions: Tensor, theta: float, dims: int | None = None) -> Tensor:
    """Turn each pair (x[i], x[i + half]) by an angle that grows with position.

    x [batch, heads, time, head_dim], positions [batch or 1, time]; only the first `dims`, an even number, are turned.
    """
    if dims is not None and dims < x.shape[-1]:
        return torch.cat((rotate(x[..., :dims], positions, theta), x[..., dims:]), dim=-1) if dims else x
    half = x.shape[-1] // 2
    exact = torch.promote_types(x.dtype, torch.float32)
    rates = theta ** (-torch.arange(half, device=x.device, dtype=exact) / half)
    angles = positions[:, None, :, None].to(exact) * rates
    cos, sin = angles.cos(), angles.sin()
    first, second = x.to(exact).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
