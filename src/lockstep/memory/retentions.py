"""Retentions: how what is held becomes weights.

l2 holds the weights themselves. lq (Moneta) holds A with W = A / ‖A‖_q^(q-2), one norm per matrix. kl (Memora) holds
log W up to a shift of each row, with W = c softmax over a row. The last two are not linear, so they are applied at
the chunk's start, and inside the chunk W moves with what is held along a fixed linear map: lq's scale is frozen, and
softmax is replaced by its derivative at the uniform distribution, (x - mean of x) / width, which keeps a row's sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.memory.spec import MemorySpec

TINY = 1e-6
"""Bounds lq's scale: an empty memory has weights zero, not infinite."""


class Retained:
    """One matrix as it stands at a chunk's start: its weights, and how they follow what is held."""

    def __init__(self, held: Tensor, spec: MemorySpec) -> None:
        """held [..., in, out]."""
        self.kind, self.simplex = spec.retention, spec.simplex
        self.held = held
        self.scale: Tensor | None = None
        if self.kind == "lq":
            largest = torch.finfo(held.dtype).max ** 0.5
            self.scale = 1 / (lq_norm(held, spec.q) ** (spec.q - 2)).clamp(TINY, largest)
        self.weights = self.simplex * held.softmax(dim=-1) if self.kind == "kl" else self.follow(held)

    def follow(self, change: Tensor) -> Tensor:
        """How the weights change with what is held; acts on the last dimension alone, so on errors as on matrices."""
        if self.scale is not None:
            return change * self.scale
        if self.kind == "kl":
            return (change - change.mean(dim=-1, keepdim=True)) * (self.simplex / change.shape[-1])
        return change

    @property
    def base(self) -> Tensor | None:
        """The part of the weights that does not follow what is held: W = base + follow(held)."""
        return self.weights - self.follow(self.held) if self.kind == "kl" else None

    def at(self, held: Tensor) -> Tensor:
        """The weights inside the chunk, given what is held there."""
        followed = self.follow(held)
        base = self.base
        return followed if base is None else base + followed


def lq_norm(held: Tensor, q: float) -> Tensor:
    """One number per matrix, [..., 1, 1]; the largest entry is taken out, so that powers do not overflow."""
    largest = held.detach().abs().amax(dim=(-2, -1), keepdim=True).clamp_min(TINY)
    total = ((held / largest).abs() ** q).sum(dim=(-2, -1), keepdim=True)
    # Where nothing is held the root has no slope.
    norm: Tensor = largest * total.clamp_min(torch.finfo(held.dtype).tiny) ** (1 / q)
    return norm
