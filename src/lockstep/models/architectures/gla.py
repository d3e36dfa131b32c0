"""Gated linear attention (Yang et al., arXiv 2312.06635)."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import PositiveInt, model_validator

from lockstep.models.mixers.gated_linear_attention import GatedLinearAttention
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec, heads_divide


@architecture("gla")
class GlaSpec(ModelSpec):
    """Linear attention whose keys' channels forget on their own, inside the common block."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = ({"chunk": 4}, {"chunk": 8}, {"tie_embeddings": False})

    chunk: PositiveInt = 64
    """Tokens that are computed at once, rounded down to a power of two; no result depends on it."""

    @model_validator(mode="after")
    def _heads_fit(self) -> GlaSpec:
        heads_divide(self.dim, self.heads)
        return self

    def mixer(self, layer: int) -> GatedLinearAttention:
        return GatedLinearAttention(self.dim, self.heads, chunk=self.chunk)
