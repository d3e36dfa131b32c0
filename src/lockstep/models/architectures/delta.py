"""DeltaNet (Yang et al., arXiv 2406.06484) and Gated DeltaNet (Yang et al., arXiv 2412.06464)."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import NonNegativeInt, PositiveInt, model_validator

from lockstep.models.mixers.delta_net import DeltaNet, GatedDeltaNet
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec, heads_divide

MULTIPLE = 8
"""Head widths that Gated DeltaNet chooses by itself are multiples of this."""


class DeltaSpec(ModelSpec):
    """What the two share."""

    conv: NonNegativeInt = 4
    """Width of the convolution of queries, keys and values; 0 is none."""
    chunk: PositiveInt = 64
    """Tokens that are worked on as one; the results do not depend on it."""


@architecture("deltanet")
class DeltaNetSpec(DeltaSpec):
    """Linear attention that corrects what it has written: 4 dim² parameters a layer, as attention has."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = ({"chunk": 8}, {"chunk": 4, "conv": 0})

    @model_validator(mode="after")
    def _heads_fit(self) -> DeltaNetSpec:
        heads_divide(self.dim, self.heads)
        return self

    def mixer(self, layer: int) -> DeltaNet:
        width = heads_divide(self.dim, self.heads)
        return DeltaNet(self.dim, self.heads, width, width, conv=self.conv, chunk=self.chunk)


@architecture("gated-deltanet")
class GatedDeltaNetSpec(DeltaSpec):
    """A delta rule that also forgets, with a gate on what is read: about 6 dim² parameters a layer, as published."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {"chunk": 8},
        {"chunk": 4, "conv": 0, "head_dim": 5, "expand_v": 3},
    )

    head_dim: PositiveInt | None = None
    """Width of a head's queries and keys; by default three quarters of its share of dim, to a multiple of 8."""
    expand_v: PositiveInt = 2
    """Width of a head's values, in widths of its keys."""

    def mixer(self, layer: int) -> GatedDeltaNet:
        eighths = round(3 * self.dim / (4 * self.heads * MULTIPLE))
        key_dim = self.head_dim or max(1, eighths) * MULTIPLE
        return GatedDeltaNet(self.dim, self.heads, key_dim, self.expand_v * key_dim, conv=self.conv, chunk=self.chunk)
