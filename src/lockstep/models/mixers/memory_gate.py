"""How Titans joins attention and memory: a product of the two, each normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.kernels.rows import joined
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

    def forward(self, attended: Sequence[Tensor], reads: Sequence[Tensor | None]) -> Tensor:
        """[batch, time, dim] of a whole text, for a product, from its pieces.

        Each has what attention says, [batch, time, dim], and what is read, [batch, time, heads, head_dim].
        """
        if joined.takes(attended, reads):
            # Triton is needed where it is used alone.
            from lockstep.kernels.rows.joined_operator import joined as by_kernel

            learned = self.attention_weight, self.attention_bias, self.read_weight, self.read_bias
            y: Tensor = by_kernel(list(attended), list(reads), *learned, EPSILON)
            return y
        pieces = [self.by_torch(*both) for both in zip(attended, reads, strict=True)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def by_torch(self, attended: Tensor, reads: Tensor | None) -> Tensor:
        """Of one piece."""
        apart = attended.unflatten(-1, (self.heads, -1))
        mixed = torch.addcmul(self.attention_bias, self.normal(apart), self.attention_weight)
        if reads is None or self.read_weight is None or self.read_bias is None:
            return as_operand(mixed)
        gate = F.silu(torch.addcmul(self.read_bias, self.normal(reads), self.read_weight))
        return as_operand(mixed * gate)

    def normal(self, apart: Tensor) -> Tensor:
        """[batch, time, dim], each head on its own."""
        return F.rms_norm(apart, apart.shape[-1:], eps=EPSILON).flatten(-2)
