"""Gated linear attention (Yang et al., arXiv 2312.06635): a matrix per head whose rows each token lets fade."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.memory.types import arithmetic
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import per_head
from lockstep.models.recurrences.channel_decayed import channel_decayed, channel_decayed_flops

EPSILON = 1e-5
RANK = 16
"""Of the map to the gates, which has a number for every channel of the keys."""
TEMPERATURE = 16.0
"""Divides the logarithm of the gates, so that they are near one and forget slowly."""


class GatedLinearAttention(Mixer):
    """Keys are half as wide as values; a read is normalised per head, gated by the input and projected."""

    def __init__(self, dim: int, heads: int, *, chunk: int) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.value_dim = dim // heads
        self.key_dim = max(1, self.value_dim // 2)
        self.widths = (heads * self.key_dim, heads * self.key_dim, heads * self.value_dim)
        self.qkv = nn.Linear(dim, sum(self.widths), bias=False)
        self.low = nn.Linear(dim, RANK, bias=False)
        self.keep = nn.Linear(RANK, heads * self.key_dim)
        self.norm = nn.RMSNorm(self.value_dim, eps=EPSILON)
        self.gate = nn.Linear(dim, heads * self.value_dim, bias=False)
        self.output = nn.Linear(heads * self.value_dim, dim, bias=False)

    def step(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        if state is None:
            state = self.initial_state(x.shape[0])
        queries, keys, values = (self.by_head(part) for part in self.qkv(x).split(self.widths, dim=-1))
        queries, log_keep = queries.to(state.dtype) * self.key_dim**-0.5, self.by_head(self.log_keep(x))
        reads, state = channel_decayed(queries, keys, values, log_keep, state, self.chunk)
        said = per_head(self.norm, reads.transpose(1, 2))
        gate = self.gate(x)
        y: Tensor = self.output((said * F.silu(gate)).to(gate.dtype))
        return y, state

    def by_head(self, x: Tensor) -> Tensor:
        """[batch, time, heads × dim] to [batch, heads, time, dim]."""
        y: Tensor = x.unflatten(-1, (self.heads, -1))
        return y.transpose(1, 2)

    def log_keep(self, x: Tensor) -> Tensor:
        """[batch, time, heads × key_dim], in at least float32."""
        logits = F.linear(self.low(x), self.keep.weight).to(arithmetic(x.dtype)) + self.keep.bias
        return F.logsigmoid(logits) / TEMPERATURE

    def initial_state(self, batch: int, capacity: int | None = None) -> Tensor:
        return self.zeros(batch, self.heads, self.key_dim, self.value_dim).to(arithmetic(self.like.dtype))

    def cost(self, length: int) -> Cost:
        matrices = (self.qkv, self.low, self.keep, self.gate, self.output)
        chunked, alone = (
            self.heads * channel_decayed_flops(tokens, self.chunk, self.key_dim, self.value_dim)
            for tokens in (length, 1)
        )
        held = self.heads * self.key_dim * self.value_dim
        return Cost(
            forward_flops=sum(product_flops(*matrix.weight.shape) for matrix in matrices) + chunked,
            decoding_extra=alone - chunked,
            state_bytes=held * arithmetic(self.like.dtype).itemsize,
        )
