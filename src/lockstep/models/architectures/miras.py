"""MIRAS (Behrouz et al., arXiv 2504.13173): Yaad, Moneta and Memora, and any other point of its grid."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from lockstep.memory import MemorySpec
from lockstep.memory.spec import Activation, Bias, HuberForm, Retention, Rule, Structure
from lockstep.models.mixers.memory_layer import MemoryLayer, WithoutMemory
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import NeuralMemory
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec, heads_divide


class MirasSpec(ModelSpec):
    """What the family shares: a memory in the place of attention, of two layers, residual and normalised."""

    chunk: PositiveInt = 64
    """Tokens whose gradients are taken at one point."""
    conv: NonNegativeInt = 4
    """Width of the convolution of queries, keys and values; 0 is none."""
    expansion: PositiveInt = 4
    """Hidden width of the memory, in head widths."""
    memory_depth: PositiveInt = 2
    """Matrices of the memory; 1 is a linear memory."""
    decay: bool = True
    """Whether the memory forgets."""
    use_memory: bool = True
    """Without it, the same model without its memory."""

    @model_validator(mode="after")
    def _heads_fit(self) -> MirasSpec:
        heads_divide(self.dim, self.heads)
        return self

    @property
    def choices(self) -> dict[str, Any]:
        """What this model chooses of the grid."""
        raise NotImplementedError

    @property
    def memory_spec(self) -> MemorySpec:
        """Forgetting leads to the learned first weights, because an MLP that has decayed to zero cannot come back."""
        common: dict[str, Any] = {
            "depth": self.memory_depth,
            "expansion": self.expansion,
            "residual": True,
            "norm": True,
            "rule": "gradient-descent",
            "decay_to": "initial",
            "chunk": self.chunk,
        }
        return MemorySpec(**(common | self.choices))

    def mixer(self, layer: int) -> Mixer:
        if not self.use_memory:
            return WithoutMemory(self.dim, self.heads, self.conv)
        return MemoryLayer(NeuralMemory(self.dim, self.heads, self.memory_spec, conv=self.conv, decay=self.decay))

    @property
    def reach(self) -> int | None:
        return None if self.use_memory else self.depth * max(self.conv - 1, 0)


SMALL: dict[str, Any] = {"chunk": 4, "expansion": 2}
"""At the laws' size: chunks that their sequences cross many times."""


@architecture("yaad")
class YaadSpec(MirasSpec):
    """Robust to outliers: the l1 gradient beyond a threshold that the model sets for each token."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = (SMALL, {**SMALL, "memory_depth": 1})

    @property
    def choices(self) -> dict[str, Any]:
        return {"bias": "huber", "huber_form": "switch"}


@architecture("moneta")
class MonetaSpec(MirasSpec):
    """An lp bias held by an lq norm."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = (SMALL, {**SMALL, "p": 1.5, "q": 3.0})

    p: Annotated[float, Field(ge=1)] = 3.0
    q: Annotated[float, Field(gt=1)] = 4.0

    @property
    def choices(self) -> dict[str, Any]:
        return {"bias": "lp", "p": self.p, "retention": "lq", "q": self.q}


@architecture("memora")
class MemoraSpec(MirasSpec):
    """Weights on the simplex, held by a KL divergence."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = (SMALL, {**SMALL, "decay": False})

    @property
    def choices(self) -> dict[str, Any]:
        # Rows that sum to the head's width have entries near one, so that activations are neither flat nor saturated.
        return {"retention": "kl", "simplex": float(heads_divide(self.dim, self.heads))}


@architecture("memory")
class AnyMemorySpec(MirasSpec):
    """Any point of the grid, by name."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        SMALL,
        {**SMALL, "structure": "linear", "residual": False, "memory_norm": False, "chunk": 1, "tile": 8},
        {**SMALL, "structure": "linear", "residual": False, "memory_norm": False, "chunk": 1, "tile": 8, "bias": "dot"},
        {**SMALL, "bias": "huber", "huber_form": "coordinate", "clip": 0.5, "read": "before"},
        {**SMALL, "rule": "gradient-descent", "retention": "lq", "decay_to": "zero", "activation": "silu"},
        {**SMALL, "use_memory": False},
    )

    structure: Structure = "mlp"
    residual: bool = True
    memory_norm: bool = True
    activation: Activation = "gelu"
    bias: Bias = "l2"
    p: Annotated[float, Field(ge=1)] = 3.0
    huber_form: HuberForm = "norm"
    retention: Retention = "l2"
    q: Annotated[float, Field(gt=1)] = 4.0
    simplex: PositiveFloat = 1.0
    decay_to: Literal["zero", "initial"] = "initial"
    rule: Rule = "momentum"
    clip: PositiveFloat | None = None
    tile: PositiveInt = 64
    read: Literal["after", "before"] = "after"

    @model_validator(mode="after")
    def _is_a_point_of_the_grid(self) -> AnyMemorySpec:
        _ = self.memory_spec
        return self

    @property
    def choices(self) -> dict[str, Any]:
        own = set(AnyMemorySpec.model_fields) - set(MirasSpec.model_fields) - {"memory_norm"}
        return self.model_dump(include=own) | {"norm": self.memory_norm}
