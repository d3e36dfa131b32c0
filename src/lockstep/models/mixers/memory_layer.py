"""A memory alone as a mixer: Titans' LMM, and every other point of the MIRAS grid."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.memory.recomputation import recomputed
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.convolution import ShortConvolution
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import NeuralMemory, NeuralState, Tail, per_head

EPSILON = 1e-6


class MemoryLayer(Mixer):
    """Read, normalise per head, gate by the input, project."""

    def __init__(self, memory: NeuralMemory) -> None:
        super().__init__()
        self.memory = memory
        self.norm = nn.RMSNorm(memory.head_dim, eps=EPSILON)
        self.gate = nn.Linear(memory.dim, memory.dim, bias=False)
        self.output = nn.Linear(memory.dim, memory.dim, bias=False)

    def step(self, x: Tensor, state: NeuralState | None) -> tuple[Tensor, NeuralState]:
        if state is not None:
            normal, state = self.memory.step(x, state, norm=self.norm)
            return self.output(normal.flatten(-2) * F.silu(self.gate(x))), state
        # Of a whole text the norm is computed again on the way back.
        reads, state = self.memory.step(x, None)
        return self.output(recomputed(self.gated, reads, self.gate(x))), state

    def gated(self, reads: Tensor, gate: Tensor) -> Tensor:
        return per_head(self.norm, reads) * F.silu(gate)

    def initial_state(self, batch: int, capacity: int | None = None) -> NeuralState:
        return self.memory.initial_state(batch)

    def initialise(self) -> None:
        self.memory.initialise()

    def cost(self, length: int) -> Cost:
        matrices = product_flops(*self.gate.weight.shape) + product_flops(*self.output.weight.shape)
        return self.memory.cost(length) + Cost(forward_flops=matrices)


class WithoutMemory(Mixer):
    """The same layer without its memory: the convolved values go where the reads went."""

    def __init__(self, dim: int, heads: int, conv: int) -> None:
        super().__init__()
        self.heads = heads
        self.values = nn.Linear(dim, dim, bias=False)
        self.conv = ShortConvolution(dim, conv) if conv > 1 else None
        self.norm = nn.RMSNorm(dim // heads, eps=EPSILON)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)

    def step(self, x: Tensor, state: Tail | None) -> tuple[Tensor, Tail]:
        tail = self.initial_state(x.shape[0]) if state is None else state
        values = self.values(x)
        if self.conv is not None:
            values, tail = self.conv(values, tail)
        normal = per_head(self.norm, F.silu(values).unflatten(-1, (self.heads, -1)))
        y: Tensor = self.output(normal * F.silu(self.gate(x)))
        return y, tail

    def initial_state(self, batch: int, capacity: int | None = None) -> Tail:
        return () if self.conv is None else self.conv.initial_tail(batch)

    def initialise(self) -> None:
        if self.conv is not None:
            self.conv.initialise()

    def cost(self, length: int) -> Cost:
        matrices = (self.values, self.gate, self.output)
        tail = 0 if self.conv is None else (self.conv.width - 1) * self.conv.channels * self.like.element_size()
        return Cost(forward_flops=sum(product_flops(*matrix.weight.shape) for matrix in matrices), state_bytes=tail)
