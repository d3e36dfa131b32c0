"""Titans' MAL: a memory below windowed attention, in one mixer."""

from __future__ import annotations

from torch import Tensor, nn

from lockstep.models.mixers.attention import Attention
from lockstep.models.mixers.attention_and_memory import AttentionAndMemory, BothState
from lockstep.models.mixers.neural_memory import NeuralMemory, NeuralState, normed, per_head

EPSILON = 1e-6


class MemoryAsLayer(AttentionAndMemory):
    """o = output(m + attention(norm(x + m))) with m = norm(memory(x)): each part has its own way into the output."""

    def __init__(self, attention: Attention, memory: NeuralMemory | None) -> None:
        super().__init__(attention, memory)
        dim, head_dim = attention.output.in_features, attention.head_dim
        self.read_norm = None if memory is None else nn.RMSNorm(head_dim, eps=EPSILON)
        self.norm = None if memory is None else nn.RMSNorm(dim, eps=EPSILON)

    def forward(self, x: Tensor, state: BothState | None = None) -> Tensor:
        if state is not None:
            return self.step(x, state)[0]
        if self.memory is None:
            return self.attention.forward(x)
        reads, above = self.below(x, self.memory.step(x, None)[0])
        y: Tensor = self.output(reads + self.attention.mix(above))
        return y

    def step(self, x: Tensor, state: BothState | None) -> tuple[Tensor, BothState]:
        state = self.initial_state(x.shape[0]) if state is None else state
        memory = state.memory
        if self.memory is None or not isinstance(memory, NeuralState):
            y, cache = self.attention.step(x, state.attention)
            return y, BothState(cache, memory)
        said, memory = self.memory.step(x, memory)
        reads, above = self.below(x, said)
        mixed, cache = self.attention.mix_on(above, state.attention)
        return self.output(reads + mixed), BothState(cache, memory)

    def below(self, x: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        """What the memory gives, and what attention sees of it."""
        assert self.read_norm is not None
        assert self.norm is not None
        reads = per_head(self.read_norm, said, self.attention.heads)
        return reads, normed(self.norm, x + reads)
