"""Retention (Sun et al., arXiv 2307.08621): linear attention whose heads forget, each at a fixed rate of its own."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.memory.recomputation import recomputed
from lockstep.memory.types import arithmetic
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.attention import POSITION_BYTES
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.recurrences.decayed import decayed, decayed_flops
from lockstep.models.rotary import rotate

EPSILON = 1e-6
EXPANSION = 2
"""Width of the values, in widths of the keys."""


class RetentionState(NamedTuple):
    """What retention carries."""

    memory: Tensor  # [batch, heads, key_dim, value_dim]
    position: Tensor  # [batch], tokens seen


class Retention(Mixer):
    """Queries and keys turned by their positions, reads normalised per head and gated.

    Head h keeps 1 - 2^(-5-h) of its memory at every token; xPos's scaling of queries and keys is a decay by itself, and
    part of that number. Norms divide by the root mean square, as in the authors' code; that code also divides scores by
    their sums, which the norm undoes, so that ours does not. Rotation is that of the other architectures here, by
    halves instead of pairs, and matrices begin as the skeleton's do: the authors' Xavier gains belong to theirs.
    """

    def __init__(self, dim: int, heads: int, *, chunk: int, rope_theta: float, max_length: int) -> None:
        """Texts of up to `max_length` tokens have their angles made once, where a compiler asks for them."""
        super().__init__()
        self.dim, self.heads, self.chunk, self.rope_theta = dim, heads, chunk, rope_theta
        self.max_length = max_length
        self.key_dim, self.value_dim = dim // heads, EXPANSION * dim // heads
        self.widths = (dim, dim, EXPANSION * dim, EXPANSION * dim)
        self.input = nn.Linear(dim, sum(self.widths), bias=False)
        self.output = nn.Linear(EXPANSION * dim, dim, bias=False)

    def step(self, x: Tensor, state: RetentionState | None) -> tuple[Tensor, RetentionState]:
        memory, position = self.initial_state(x.shape[0]) if state is None else state
        *rows, gate = self.input(x).split(self.widths, dim=-1)
        queries, keys, values = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2).to(memory.dtype) for part in rows)
        positions, below = torch.arange(x.shape[1], device=x.device)[None], None
        if state is not None:
            positions = positions + position[:, None]
        elif x.shape[1] <= self.max_length:
            below = self.max_length
        queries = rotate(queries, positions, self.rope_theta, below=below)
        keys = rotate(keys, positions, self.rope_theta, below=below) * self.key_dim**-0.5
        log_keep = self.log_keep(memory)[None, :, None].expand(-1, -1, x.shape[1])
        reads, memory = decayed(queries, keys, values, log_keep, memory, self.chunk)
        y: Tensor = self.output(recomputed(self.gated, reads, gate))
        return y, RetentionState(memory, position + x.shape[1])

    def log_keep(self, like: Tensor) -> Tensor:
        """[heads]; no buffer, which would be rounded with the model."""
        if not torch.compiler.is_compiling():
            return log_keeps(self.heads, like.dtype, like.device)
        # A compiled kernel that made them would load nothing, and none of its graph begin early (`compile_steps`).
        from lockstep.models.mixers.prepared import prepared

        return prepared(log_keeps, self.heads, like.dtype, like.device)

    def gated(self, reads: Tensor, gate: Tensor) -> Tensor:
        exact = reads.to(arithmetic(reads.dtype))
        normal = F.rms_norm(exact, (self.value_dim,), eps=EPSILON).transpose(1, 2).flatten(2)
        return normal.to(gate.dtype) * F.silu(gate)

    def initial_state(self, batch: int, capacity: int | None = None) -> RetentionState:
        memory = self.zeros(batch, self.heads, self.key_dim, self.value_dim).to(arithmetic(self.like.dtype))
        return RetentionState(memory, torch.zeros(batch, dtype=torch.int64, device=memory.device))

    def cost(self, length: int) -> Cost:
        sizes = (self.heads, self.heads, self.key_dim, self.value_dim)
        forward = decayed_flops(length, self.chunk, *sizes)
        return Cost(
            forward_flops=product_flops(*self.input.weight.shape) + product_flops(*self.output.weight.shape) + forward,
            decoding_extra=decayed_flops(1, self.chunk, *sizes) - forward,
            state_bytes=self.dim * self.value_dim * arithmetic(self.like.dtype).itemsize + POSITION_BYTES,
        )


def log_keeps(heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[heads]"""
    return torch.log1p(-torch.exp2(-5 - torch.arange(heads, device=device, dtype=dtype)))
