"""TTT-Linear and TTT-MLP (Sun et al., arXiv 2407.04620): hidden states that are models, trained at test time."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from lockstep.memory import MemorySpec
from lockstep.memory.spec import Structure
from lockstep.models.mixers.memory_layer import MemoryLayer
from lockstep.models.mixers.test_time_training import TestTimeTraining
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec, heads_divide


class TestTimeTrainingSpec(ModelSpec):
    """What the two share: the layer's output is normalised per head and gated, as all memories here are."""

    __test__ = False
    """Not one of pytest's classes, whatever the name says."""
    structure: ClassVar[Structure]
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({"chunk": 4}, {"chunk": 7, "conv": 0})

    chunk: PositiveInt = 16
    """Tokens whose gradients are taken at one point."""
    conv: NonNegativeInt = 4
    """Width of the convolution of queries, keys and values; 0 is none."""
    base_rate: PositiveFloat = 1.0
    """The largest inner learning rate, before it is divided by the head's width and the chunk."""
    rope_theta: PositiveFloat = 10_000.0

    @model_validator(mode="after")
    def _heads_fit(self) -> TestTimeTrainingSpec:
        if heads_divide(self.dim, self.heads) % 2:
            raise ValueError(f"rotary heads must be even: dim {self.dim} / heads {self.heads} is odd")
        return self

    @property
    def memory_spec(self) -> MemorySpec:
        return MemorySpec(
            structure=self.structure, residual=True, norm=True, rule="gradient-descent", expansion=4, chunk=self.chunk
        )

    def mixer(self, layer: int) -> MemoryLayer:
        fields: dict[str, Any] = {"conv": self.conv, "base_rate": self.base_rate, "theta": self.rope_theta}
        return MemoryLayer(TestTimeTraining(self.dim, self.heads, self.memory_spec, **fields))


@architecture("ttt-linear")
class TttLinearSpec(TestTimeTrainingSpec):
    """The hidden state is a linear model."""

    structure: ClassVar[Structure] = "linear"


@architecture("ttt-mlp")
class TttMlpSpec(TestTimeTrainingSpec):
    """The hidden state is an MLP of two layers, four times as wide within."""

    structure: ClassVar[Structure] = "mlp"

    base_rate: PositiveFloat = 0.1
