"""A memory alone as a mixer: Titans' LMM, and every other point of the MIRAS grid."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.memory import MemorySpec
from lockstep.models.cost import Cost
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import NeuralMemory, NeuralState


class MemoryLayer(Mixer):
    """Read, normalise per head, gate by the input, project."""

    def __init__(self, dim: int, heads: int, spec: MemorySpec, *, conv: int = 4, decay: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.memory = NeuralMemory(dim, heads, spec, conv=conv, decay=decay)
        self.norm = nn.RMSNorm(dim // heads, eps=1e-6)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)

    def step(self, x: Tensor, state: NeuralState | None) -> tuple[Tensor, NeuralState]:
        state = self.initial_state(x.shape[0]) if state is None else state
        reads, state = self.memory.step(x, state)
        normal = self.norm(reads.unflatten(-1, (self.heads, -1))).flatten(-2)
        y: Tensor = self.output(normal * F.silu(self.gate(x)))
        return y, state

    def initial_state(self, batch: int, capacity: int | None = None) -> NeuralState:
        return self.memory.initial_state(batch)

    def initialise(self) -> None:
        self.memory.initialise()

    def cost(self, length: int) -> Cost:
        return Cost()
