"""Titans' MAG: windowed attention and memory side by side on the same input, joined by a gate."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from lockstep.memory.recomputation import recomputed
from lockstep.models.cost import Cost
from lockstep.models.mixers.attention import Attention, KeyValueCache
from lockstep.models.mixers.memory_gate import MemoryGate
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import NeuralMemory, NeuralState


class BothState(NamedTuple):
    """Of a mixer with attention and memory."""

    attention: KeyValueCache
    memory: NeuralState | tuple[()]


class MemoryAsGate(Mixer):
    """o = gate(attention(x), memory(x))."""

    def __init__(self, attention: Attention, memory: NeuralMemory | None) -> None:
        """The attention's own output projection is this mixer's."""
        super().__init__()
        self.attention, self.memory = attention, memory
        self.gate = MemoryGate(attention.output.in_features, attention.heads, use_memory=memory is not None)

    @property
    def output(self) -> nn.Linear:
        return self.attention.output

    def forward(self, x: Tensor, state: BothState | None = None) -> Tensor:
        if state is not None:
            return self.step(x, state)[0]
        reads = None if self.memory is None else self.memory.step(x, None)[0]
        y: Tensor = self.output(recomputed(self.gate, self.attention.mix(x), reads))
        return y

    def step(self, x: Tensor, state: BothState | None) -> tuple[Tensor, BothState]:
        state = self.initial_state(x.shape[0]) if state is None else state
        attended, cache = self.attention.mix_on(x, state.attention)
        reads, memory = None, state.memory
        if self.memory is not None and isinstance(memory, NeuralState):
            reads, memory = self.memory.step(x, memory)
        return self.output(self.gate(attended, reads)), BothState(cache, memory)

    def initial_state(self, batch: int, capacity: int | None = None) -> BothState:
        memory = () if self.memory is None else self.memory.initial_state(batch)
        return BothState(self.attention.initial_state(batch, capacity), memory)

    def initialise(self) -> None:
        self.attention.initialise()
        if self.memory is not None:
            self.memory.initialise()

    def cost(self, length: int) -> Cost:
        memory = Cost() if self.memory is None else self.memory.cost(length)
        return self.attention.cost(length) + memory
