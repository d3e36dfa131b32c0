"""How Titans joins attention and memory: a product of the two, each normalised."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.memory.recomputation import as_operand

EPSILON = 1e-6


class MemoryGate(nn.Module):
    """(w₁ * norm(y) + b₁) * silu(w₂ * norm(m) + b₂), with both b starting at one, so that either side passes alone."""

    def __init__(self, dim: int, heads: int, *, use_memory: bool = True) -> None:
        """Without memory only the first factor is left."""
        super().__init__()
        self.heads = heads
        self.attention_weight, self.attention_bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))
        self.read_weight = nn.Parameter(torch.ones(dim)) if use_memory else None
        self.read_bias = nn.Parameter(torch.ones(dim)) if use_memory else None

    def forward(self, attended: Tensor, reads: Tensor | None) -> Tensor:
        """[batch, time, dim] from both, for a product."""
        mixed = torch.addcmul(self.attention_bias, self.normal(attended), self.attention_weight)
        if reads is None or self.read_weight is None or self.read_bias is None:
            return as_operand(mixed)
        gate = F.silu(torch.addcmul(self.read_bias, self.normal(reads), self.read_weight))
        return as_operand(mixed * gate)

    def normal(self, x: Tensor) -> Tensor:
        """Each head on its own."""
        per_head = x.unflatten(-1, (self.heads, -1))
        return F.rms_norm(per_head, per_head.shape[-1:], eps=EPSILON).flatten(-2)
