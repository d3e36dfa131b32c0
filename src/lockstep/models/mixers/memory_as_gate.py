"""Titans' MAG: windowed attention and memory side by side on the same input, joined by a gate."""

from __future__ import annotations

from torch import Tensor

from lockstep.memory.recomputation import never_kept
from lockstep.models.beside import both
from lockstep.models.mixers.attention import Attention
from lockstep.models.mixers.attention_and_memory import AttentionAndMemory, BothState
from lockstep.models.mixers.memory_gate import MemoryGate
from lockstep.models.mixers.neural_memory import NeuralMemory, NeuralState


class MemoryAsGate(AttentionAndMemory):
    """o = gate(attention(x), memory(x))."""

    def __init__(self, attention: Attention, memory: NeuralMemory | None) -> None:
        super().__init__(attention, memory)
        self.gate = MemoryGate(attention.output.in_features, attention.heads, use_memory=memory is not None)

    def forward(self, x: Tensor, state: BothState | None = None) -> Tensor:
        if state is not None:
            return self.step(x, state)[0]
        reads = None if self.memory is None else self.memory.step(x, None)[0]
        y: Tensor = self.output(never_kept(self.gate, [self.attention.mix(x)], [reads]))
        return y

    def step(self, x: Tensor, state: BothState | None) -> tuple[Tensor, BothState]:
        state = self.initial_state(x.shape[0]) if state is None else state
        if self.memory is None or not isinstance(state.memory, NeuralState):
            attended, cache = self.attention.mix_on(x, state.attention)
            return self.output(self.gate([attended], [None])), BothState(cache, state.memory)
        (attended, cache), (reads, memory) = both(
            (self.attention.mix_on, x, state.attention), (self.memory.step, x, state.memory)
        )
        return self.output(self.gate([attended], [reads])), BothState(cache, memory)
