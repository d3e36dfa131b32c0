"""The four choices of MIRAS (arXiv 2504.13173) that make a memory, and how it is run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from lockstep.config.spec import Spec

Structure = Literal["linear", "mlp"]
Activation = Literal["gelu", "silu", "relu"]
Bias = Literal["l2", "lp", "huber", "dot"]
HuberForm = Literal["norm", "coordinate", "switch"]
Retention = Literal["l2", "lq", "kl"]
Rule = Literal["gradient-descent", "momentum"]


class MemorySpec(Spec):
    """A point of the grid. The defaults are those of Titans (arXiv 2501.00663) where it says something."""

    structure: Structure = "mlp"
    """A matrix, or matrices with an activation between them."""
    depth: PositiveInt = 2
    """Matrices of an MLP."""
    expansion: PositiveInt = 4
    """Hidden width in head widths; used when weights are drawn, afterwards their shapes say it."""
    residual: bool = False
    """Whether the key itself is added to what the network says."""
    norm: bool = False
    """Whether what the network says is layer-normalised, with an affine map of the outer model."""
    activation: Activation = "gelu"
    """Between the matrices; `gelu` in its tanh form."""

    bias: Bias = "l2"
    """What is minimised: the distance to the value in some norm, or minus the inner product with it."""
    p: Annotated[float, Field(ge=1)] = 3.0
    """The exponent of `lp`."""
    huber_form: HuberForm = "norm"
    """Where Huber's threshold applies: to the error's norm, to each coordinate, or as a switch to the l1 gradient."""

    retention: Retention = "l2"
    """What old weights are held by: plain decay, an lq norm, or a KL divergence on the simplex."""
    q: Annotated[float, Field(gt=1)] = 4.0
    """The exponent of `lq`."""
    simplex: PositiveFloat = 1.0
    """What a row of the weights sums to under `kl`."""
    decay_to: Literal["zero", "initial"] = "zero"
    """Where forgetting leads."""

    rule: Rule = "momentum"
    """How the gradient is followed."""
    clip: PositiveFloat | None = None
    """The largest norm of a token's gradient at the output of the last matrix."""

    chunk: PositiveInt = 16
    """Tokens that share one gradient point."""
    tile: PositiveInt = 64
    """Tokens computed at once where the rule is exact per token (see `exact`)."""
    read: Literal["after", "before"] = "after"
    """Whether a token reads the memory with its own write in it."""

    @model_validator(mode="after")
    def _momentum_is_linear(self) -> MemorySpec:
        if self.rule == "momentum" and self.retention != "l2":
            raise ValueError(f"rule momentum needs retention l2: {self.retention} is not linear in the weights")
        return self

    @property
    def layers(self) -> int:
        """Matrices of the structure."""
        return 1 if self.structure == "linear" else self.depth

    @property
    def has_momentum(self) -> bool:
        return self.rule == "momentum"

    @property
    def exact(self) -> bool:
        """Whether the rule is linear in the memory, so that any number of tokens has a closed form at chunk 1."""
        linear = self.layers == 1 and not self.norm and self.clip is None
        return linear and self.chunk == 1 and self.bias in ("l2", "dot") and self.retention == "l2"
