"""The memory of Titans and MIRAS as a part of mixers: projections, convolution, gates, and the memory itself."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.memory import Gates, Memory, MemorySpec, MemoryState, Outer, begin, stream
from lockstep.memory.initialisation import draw_weights, stable_rate
from lockstep.memory.types import arithmetic
from lockstep.models.mixers.convolution import ShortConvolution

SHORTEST, LONGEST = 64, 4096
"""Tokens after which heads have forgotten 1 - 1/e at the beginning of training, spread geometrically."""
MOMENTUM = 0.5
"""What remains of the velocity per token at the beginning of training."""

UNIT_EPSILON = 1e-6


class NeuralState(NamedTuple):
    """What a neural memory carries."""

    tail: Tensor  # [batch, conv - 1, 3 × dim], inputs of the convolution; no rows without one
    memory: MemoryState


class NeuralMemory(nn.Module):
    """One memory per head, written with keys and values and read with queries, all made of the same input."""

    def __init__(self, dim: int, heads: int, spec: MemorySpec, *, conv: int = 4, decay: bool = True) -> None:
        """`conv` is the width of the convolution, 0 or 1 being none; without `decay` nothing is forgotten."""
        super().__init__()
        self.dim, self.heads, self.spec, self.decay = dim, heads, spec, decay
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.conv = ShortConvolution(3 * dim, conv) if conv > 1 else None
        self.gate_names = tuple(
            name
            for name, present in (
                ("keep", decay),
                ("rate", True),
                ("momentum", spec.has_momentum),
                ("threshold", spec.bias == "huber"),
            )
            if present
        )
        self.gates = nn.Linear(dim, heads * len(self.gate_names))
        self.weights = nn.ParameterList(draw_weights(spec, heads, self.head_dim))
        first_gain = self.head_dim**-0.5
        self.gain = nn.Parameter(torch.full((heads, self.head_dim), first_gain)) if spec.norm else None
        self.shift = nn.Parameter(torch.zeros(heads, self.head_dim)) if spec.norm else None
        momentum = MOMENTUM if spec.has_momentum else 0.0
        self.largest_rate = 2 * stable_rate(spec, self.head_dim, first_gain, momentum)

    def step(self, x: Tensor, state: NeuralState) -> tuple[Tensor, NeuralState]:
        """What each token reads, [batch, time, dim], and the state after the last of them."""
        qkv = self.qkv(x)
        tail = state.tail
        if self.conv is not None:
            qkv, tail = self.conv(qkv, tail)
        queries, keys, values = F.silu(qkv).unflatten(-1, (3, self.heads, self.head_dim)).unbind(2)
        queries, keys, values = (x.transpose(1, 2) for x in (unit(queries), unit(keys), values))
        reads, memory = stream(queries, keys, values, self.gate_values(x), state.memory, self.spec, self.outer)
        return reads.transpose(1, 2).flatten(2), NeuralState(tail.to(state.tail.dtype), memory)

    def gate_values(self, x: Tensor) -> Gates:
        """Every gate is bounded for any input: keep and momentum by 1, the rate by twice the stable one."""
        logits = self.gates(x).to(arithmetic(x.dtype)).unflatten(-1, (-1, self.heads)).permute(2, 0, 3, 1)
        found = dict(zip(self.gate_names, logits.unbind(), strict=True))
        rate = self.largest_rate * found["rate"].sigmoid()
        keep = found["keep"].sigmoid() if self.decay else torch.ones_like(rate)
        momentum = found["momentum"].sigmoid() if "momentum" in found else None
        threshold = F.softplus(found["threshold"]) if "threshold" in found else None
        return Gates(keep, rate, momentum, threshold)

    @property
    def outer(self) -> Outer:
        return Outer(self.gain, self.shift, tuple(self.weights))

    def initial_state(self, batch: int) -> NeuralState:
        exactly = arithmetic(self.qkv.weight.dtype)
        weights = tuple(matrix.to(exactly).expand(batch, *matrix.shape) for matrix in self.weights)
        velocity = tuple(torch.zeros_like(matrix) for matrix in weights) if self.spec.has_momentum else None
        width = self.conv.width - 1 if self.conv is not None else 0
        tail = self.qkv.weight.new_zeros(batch, width, 3 * self.dim)
        return NeuralState(tail, begin(Memory(weights, velocity)))

    @torch.no_grad()
    def initialise(self) -> None:
        """Gates that begin at a stable rate, half momentum, and horizons spread over the heads."""
        if self.conv is not None:
            self.conv.initialise()
        share = torch.linspace(0, 1, self.heads) if self.heads > 1 else torch.full((1,), 0.5)
        horizon = SHORTEST * (LONGEST / SHORTEST) ** share
        first = {
            "keep": (horizon - 1).log(),
            "rate": torch.zeros(self.heads),
            "momentum": torch.full((self.heads,), math.log(MOMENTUM / (1 - MOMENTUM))),
            "threshold": torch.full((self.heads,), math.log(math.e - 1)),
        }
        self.gates.bias.copy_(torch.cat([first[name] for name in self.gate_names]))


def unit(x: Tensor) -> Tensor:
    """Rows of norm one; an empty row stays empty."""
    return x * (x.square().sum(dim=-1, keepdim=True) + UNIT_EPSILON).rsqrt()
