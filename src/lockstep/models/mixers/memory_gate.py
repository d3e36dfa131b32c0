"""How Titans joins attention and memory: a product of the two, each normalised."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPSILON = 1e-6


class MemoryGate(nn.Module):
    """(w₁ * norm(y) + b₁) * silu(w₂ * norm(m) + b₂), with both b starting at one, so that either side passes alone."""

    def __init__(self, dim: int, heads: int, *, use_memory: bool = True) -> None:
        """Without memory only the first factor is left."""
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.ones(2 if use_memory else 1, dim))
        self.bias = nn.Parameter(torch.ones(2 if use_memory else 1, dim))

    def forward(self, attended: Tensor, reads: Tensor | None) -> Tensor:
        """[batch, time, dim] from both."""
        mixed = torch.addcmul(self.bias[0], self.normal(attended), self.weight[0])
        if reads is None:
            return mixed
        return mixed * F.silu(torch.addcmul(self.bias[1], self.normal(reads), self.weight[1]))

    def normal(self, x: Tensor) -> Tensor:
        """Each head on its own."""
        per_head = x.unflatten(-1, (self.heads, -1))
        return F.rms_norm(per_head, per_head.shape[-1:], eps=EPSILON).flatten(-2)
