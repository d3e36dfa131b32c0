"""What Titans' MAG and MAL share: windowed attention and a memory in one mixer."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from lockstep.models.cost import Cost
from lockstep.models.mixers.attention import Attention
from lockstep.models.mixers.cache import KeyValueCache
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import NeuralMemory, NeuralState


class BothState(NamedTuple):
    """Of a mixer with attention and memory."""

    attention: KeyValueCache
    memory: NeuralState | tuple[()]


class AttentionAndMemory(Mixer):
    """The two parts and their state; how they are joined is a subclass's."""

    def __init__(self, attention: Attention, memory: NeuralMemory | None) -> None:
        super().__init__()
        self.attention, self.memory = attention, memory

    @property
    def output(self) -> nn.Linear:
        """The attention's own output projection is the mixer's."""
        return self.attention.output

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
