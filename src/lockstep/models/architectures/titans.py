"""Titans (Behrouz et al., arXiv 2501.00663): a memory that learns at test time, alone or beside attention."""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveInt

from lockstep.memory import MemorySpec
from lockstep.models.mixers.memory_layer import MemoryLayer
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec


class TitansSpec(ModelSpec):
    """What the family shares."""

    chunk: PositiveInt = 64
    segment: PositiveInt = 256
    window: PositiveInt = 256
    persistent: NonNegativeInt = 4
    conv: NonNegativeInt = 4
    expansion: PositiveInt = 2
    memory_depth: PositiveInt = 2
    momentum: bool = True
    decay: bool = True

    @property
    def memory(self) -> MemorySpec:
        return MemorySpec(
            depth=self.memory_depth,
            expansion=self.expansion,
            residual=True,
            norm=True,
            rule="momentum" if self.momentum else "gradient-descent",
            decay_to="initial",
            chunk=self.chunk,
        )


@architecture("titans-lmm")
class TitansLmmSpec(TitansSpec):
    """The long-term memory alone."""

    def mixer(self, layer: int) -> MemoryLayer:
        return MemoryLayer(self.dim, self.heads, self.memory, conv=self.conv, decay=self.decay)
