"""Linear attention (Katharopoulos et al., arXiv 2006.16236): softmax's kernel replaced by one of finite features."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.memory.types import arithmetic
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.recurrences.decayed import decayed, decayed_flops

EPSILON = 1e-6


class LinearAttention(Mixer):
    """A weighted mean of all values so far, the weights being products of the features elu(x) + 1.

    The state is [batch, heads, head_dim, head_dim + 1]: what is written is each value with a one behind it, so that
    the last column holds the sum of the weights.
    """

    def __init__(self, dim: int, heads: int, chunk: int) -> None:
        super().__init__()
        self.dim, self.heads, self.chunk = dim, heads, chunk
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)

    def step(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        state = self.initial_state(x.shape[0]) if state is None else state
        rows = self.qkv(x).to(state.dtype).unflatten(-1, (3, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        queries, keys, values = rows.unbind()
        values = F.pad(values, (0, 1), value=1.0)
        reads, state = decayed(features(queries), features(keys), values, None, state, self.chunk)
        reads = reads.to(state.dtype)
        mean = reads[..., :-1] / (reads[..., -1:] + EPSILON)
        y: Tensor = self.output(mean.transpose(1, 2).flatten(2).to(x.dtype))
        return y, state

    def initial_state(self, batch: int, capacity: int | None = None) -> Tensor:
        return self.zeros(batch, self.heads, self.head_dim, self.head_dim + 1).to(arithmetic(self.like.dtype))

    def cost(self, length: int) -> Cost:
        sizes = (self.heads, self.heads, self.head_dim, self.head_dim + 1)
        forward = decayed_flops(length, self.chunk, *sizes)
        return Cost(
            forward_flops=product_flops(*self.qkv.weight.shape) + product_flops(*self.output.weight.shape) + forward,
            decoding_extra=decayed_flops(1, self.chunk, *sizes) - forward,
            state_bytes=self.dim * (self.head_dim + 1) * arithmetic(self.like.dtype).itemsize,
        )


def features(x: Tensor) -> Tensor:
    """Positive everywhere, so that every weight is."""
    return F.elu(x) + 1
