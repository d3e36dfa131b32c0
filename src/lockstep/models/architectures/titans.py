"""Titans (Behrouz et al., arXiv 2501.00663): a memory that learns at test time, alone or beside attention."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from lockstep.memory import MemorySpec
from lockstep.models.mixers.attention import Attention
from lockstep.models.mixers.memory_as_context import MemoryAsContext
from lockstep.models.mixers.memory_as_gate import MemoryAsGate
from lockstep.models.mixers.memory_as_layer import MemoryAsLayer
from lockstep.models.mixers.memory_layer import MemoryLayer, WithoutMemory
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import NeuralMemory
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec, Probability, heads_divide


class TitansSpec(ModelSpec):
    """What the family shares; a variant without attention has no use for the fields of attention."""

    chunk: PositiveInt = 64
    """Tokens whose gradients are taken at one point."""
    segment: PositiveInt = 256
    """Tokens that attend to each other in MAC; a whole number of chunks."""
    window: PositiveInt = 256
    """How far attention sees in MAG and MAL, the token itself included."""
    persistent: NonNegativeInt = 4
    """Learned tokens that attention always sees."""
    conv: NonNegativeInt = 4
    """Width of the convolution of queries, keys and values; 0 is none."""
    expansion: PositiveInt = 2
    """Hidden width of the memory, in head widths."""
    memory_depth: PositiveInt = 2
    """Matrices of the memory; 1 is a linear memory."""
    momentum: bool = True
    """Whether past surprise carries on."""
    decay: bool = True
    """Whether the memory forgets."""
    use_memory: bool = True
    """Without it, the same model without its memory."""
    use_flex_attn: bool = False
    """Attention by torch's flex_attention."""
    rope_theta: PositiveFloat = 10_000.0
    attention_dropout: Probability = 0.0

    @model_validator(mode="after")
    def _parts_fit(self) -> TitansSpec:
        heads_divide(self.dim, self.heads)
        return self

    @property
    def memory_spec(self) -> MemorySpec:
        """Residual and normalised, so that errors stay bounded; forgetting leads to the learned first weights, because
        an MLP that has decayed to zero has no gradient to come back by."""
        return MemorySpec(
            depth=self.memory_depth,
            expansion=self.expansion,
            residual=True,
            norm=True,
            rule="momentum" if self.momentum else "gradient-descent",
            decay_to="initial",
            chunk=self.chunk,
        )

    def memory(self) -> NeuralMemory | None:
        if not self.use_memory:
            return None
        return NeuralMemory(self.dim, self.heads, self.memory_spec, conv=self.conv, decay=self.decay)

    def attention(self, window: int | None) -> Attention:
        """Half of each head is turned by position; persistent tokens, which have none, are matched by the other."""
        return Attention(
            self.dim,
            self.heads,
            window=window,
            rope_theta=self.rope_theta,
            rotary_dim=heads_divide(self.dim, self.heads) // 4 * 2,
            persistent=self.persistent,
            dropout=self.attention_dropout,
            flex=self.use_flex_attn,
            max_length=self.max_length,
        )


SMALL: dict[str, Any] = {"chunk": 4, "segment": 8, "window": 5, "persistent": 2}
"""At the laws' size: chunks, segments and windows that their sequences cross many times."""
WITH_ATTENTION: tuple[dict[str, Any], ...] = (
    SMALL,
    {**SMALL, "use_memory": False},
    {**SMALL, "persistent": 0},
    {**SMALL, "use_flex_attn": True},
)
"""The ablations of the memory itself are visited where it stands alone."""


@architecture("titans-lmm")
class TitansLmmSpec(TitansSpec):
    """The long-term memory alone."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        SMALL,
        {**SMALL, "momentum": False},
        {**SMALL, "decay": False},
        {**SMALL, "conv": 0},
        {**SMALL, "memory_depth": 1},
        {**SMALL, "memory_depth": 3},
        {**SMALL, "use_memory": False},
        {**SMALL, "chunk": 7},
        {**SMALL, "chunk": 1},
    )

    def mixer(self, layer: int) -> Mixer:
        memory = self.memory()
        return WithoutMemory(self.dim, self.heads, self.conv) if memory is None else MemoryLayer(memory)

    @property
    def reach(self) -> int | None:
        return None if self.use_memory else self.depth * max(self.conv - 1, 0)


@architecture("titans-mac")
class TitansMacSpec(TitansSpec):
    """Memory as context: segments that see what the memory says of the past."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = (*WITH_ATTENTION, {**SMALL, "chunk": 8})

    @model_validator(mode="after")
    def _chunks_fill_segments(self) -> TitansMacSpec:
        if self.segment % self.chunk:
            raise ValueError(f"segment {self.segment} is not a whole number of chunks of {self.chunk}")
        return self

    def mixer(self, layer: int) -> Mixer:
        return MemoryAsContext(self.attention(None), self.memory(), self.segment)

    @property
    def reach(self) -> int | None:
        return None if self.use_memory else self.segment - 1


class WindowedSpec(TitansSpec):
    """What MAG and MAL share."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = (*WITH_ATTENTION, {**SMALL, "window": 64})

    @property
    def reach(self) -> int | None:
        return None if self.use_memory else self.depth * (self.window - 1)


@architecture("titans-mag")
class TitansMagSpec(WindowedSpec):
    """Memory as gate: windowed attention and memory side by side."""

    def mixer(self, layer: int) -> Mixer:
        return MemoryAsGate(self.attention(self.window), self.memory())


@architecture("titans-mal")
class TitansMalSpec(WindowedSpec):
    """Memory as layer: windowed attention above the memory."""

    def mixer(self, layer: int) -> Mixer:
        return MemoryAsLayer(self.attention(self.window), self.memory())
