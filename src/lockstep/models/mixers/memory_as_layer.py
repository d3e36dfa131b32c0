"""Titans' MAL: a memory below windowed attention, in one mixer."""

from __future__ import annotations

from torch import Tensor, nn

from lockstep.models.cost import Cost
from lockstep.models.mixers.attention import Attention
from lockstep.models.mixers.memory_as_gate import BothState
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import NeuralMemory, NeuralState, normed, per_head

EPSILON = 1e-6


class MemoryAsLayer(Mixer):
    """o = attention(norm(x + norm(memory(x)))); the paper's residual around every part is inside too."""

    def __init__(self, attention: Attention, memory: NeuralMemory | None) -> None:
        super().__init__()
        self.attention, self.memory = attention, memory
        dim, head_dim = attention.output.in_features, attention.head_dim
        self.read_norm = None if memory is None else nn.RMSNorm(head_dim, eps=EPSILON)
        self.norm = None if memory is None else nn.RMSNorm(dim, eps=EPSILON)

    @property
    def output(self) -> nn.Linear:
        return self.attention.output

    def forward(self, x: Tensor, state: BothState | None = None) -> Tensor:
        if state is not None:
            return self.step(x, state)[0]
        if self.memory is not None:
            x = self.below(x, self.memory.step(x, None)[0])
        y: Tensor = self.attention(x)
        return y

    def step(self, x: Tensor, state: BothState | None) -> tuple[Tensor, BothState]:
        state = self.initial_state(x.shape[0]) if state is None else state
        memory = state.memory
        if self.memory is not None and isinstance(memory, NeuralState):
            reads, memory = self.memory.step(x, memory)
            x = self.below(x, reads)
        y, cache = self.attention.step(x, state.attention)
        return y, BothState(cache, memory)

    def below(self, x: Tensor, reads: Tensor) -> Tensor:
        """What attention sees."""
        assert self.read_norm is not None
        assert self.norm is not None
        normal = per_head(self.read_norm, reads, self.attention.heads)
        return normed(self.norm, x + normal)

    def initial_state(self, batch: int, capacity: int | None = None) -> BothState:
        memory = () if self.memory is None else self.memory.initial_state(batch)
        return BothState(self.attention.initial_state(batch, capacity), memory)

    def initialise(self) -> None:
        if self.memory is not None:
            self.memory.initialise()

    def cost(self, length: int) -> Cost:
        memory = Cost() if self.memory is None else self.memory.cost(length)
        return self.attention.cost(length) + memory
