"""Titans' MAL: a memory below windowed attention, in one mixer."""

from __future__ import annotations

from torch import Tensor, nn

from lockstep.memory.recomputation import as_operand, never_kept
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
        said = self.memory.step(x, None)[0]
        above = never_kept(self.above_read, x, said)
        y: Tensor = self.output(never_kept(self.joined_read, said, self.attention.mix(above)))
        return y

    def step(self, x: Tensor, state: BothState | None) -> tuple[Tensor, BothState]:
        state = self.initial_state(x.shape[0]) if state is None else state
        memory = state.memory
        if self.memory is None or not isinstance(memory, NeuralState):
            y, cache = self.attention.step(x, state.attention)
            return y, BothState(cache, memory)
        normal, memory = self.memory.step(x, memory, norm=self.read_norm)
        reads = normal.flatten(-2)
        mixed, cache = self.attention.mix_on(self.above(x, reads), state.attention)
        return self.output(self.joined(reads, mixed)), BothState(cache, memory)

    def reads(self, said: Tensor) -> Tensor:
        """What the memory gives, [batch, time, dim], of what it said head by head."""
        assert self.read_norm is not None
        return per_head(self.read_norm, said)

    def above(self, x: Tensor, reads: Tensor) -> Tensor:
        """What attention sees of it."""
        assert self.norm is not None
        return as_operand(normed(self.norm, x + reads))

    def joined(self, reads: Tensor, mixed: Tensor) -> Tensor:
        """What the output projection sees."""
        return as_operand(reads + mixed)

    # Of a whole text the norm is computed again on the way back, for each of the two.
    def above_read(self, x: Tensor, said: Tensor) -> Tensor:
        return self.above(x, self.reads(said))

    def joined_read(self, said: Tensor, mixed: Tensor) -> Tensor:
        return self.joined(self.reads(said), mixed)
