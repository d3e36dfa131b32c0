"""Mamba-2 (Dao & Gu, arXiv 2405.21060)."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import PositiveInt, model_validator

from lockstep.models.mixers.mamba2 import Mamba2
from lockstep.models.mlp import Mlp, SwiGlu
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec

WIDEST_HEAD = 64
SMALL: dict[str, Any] = {"chunk": 4, "head_dim": 8, "d_state": 8}
"""At the laws' size: several heads, and chunks that their sequences cross many times."""


@architecture("mamba2")
class Mamba2Spec(ModelSpec):
    """Layers without an MLP; published models have twice as many as a Transformer of their size."""

    has_heads: ClassVar[bool] = False
    aspect: ClassVar[float] = 32.0
    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        SMALL,
        {**SMALL, "chunk": 8, "groups": 2, "use_mlp": True},
        {**SMALL, "chunk": 64, "d_conv": 1, "expand": 1, "head_dim": 4},
    )

    d_state: PositiveInt = 128
    """Width of keys and queries."""
    d_conv: PositiveInt = 4
    """Width of the convolution."""
    expand: PositiveInt = 2
    """Width of all values together, in widths of the model."""
    head_dim: PositiveInt | None = None
    """Width of a head's values; by default the largest divisor of their sum up to 64."""
    groups: PositiveInt = 1
    """Heads of keys and queries."""
    chunk: PositiveInt = 64
    """Tokens worked on as one; no result depends on it."""
    use_mlp: bool = False
    """Whether the skeleton's MLP follows."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Mamba2Spec:
        inner, head_dim = self.expand * self.dim, self.head_width
        if inner % head_dim:
            raise ValueError(f"expand {self.expand} × dim {self.dim} is not divisible by head_dim {head_dim}")
        if inner // head_dim % self.groups:
            raise ValueError(f"{inner // head_dim} heads are not divisible by groups {self.groups}")
        return self

    @property
    def head_width(self) -> int:
        inner = self.expand * self.dim
        return self.head_dim or max(width for width in range(1, WIDEST_HEAD + 1) if inner % width == 0)

    def mixer(self, layer: int) -> Mamba2:
        return Mamba2(
            self.dim,
            inner=self.expand * self.dim,
            head_dim=self.head_width,
            state_dim=self.d_state,
            groups=self.groups,
            conv=self.d_conv,
            chunk=self.chunk,
        )

    def mlp(self, layer: int) -> Mlp | SwiGlu | None:
        return super().mlp(layer) if self.use_mlp else None
