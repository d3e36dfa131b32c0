"""Linear attention, and RetNet: the same with a decay."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import PositiveFloat, PositiveInt, model_validator

from lockstep.models.mixers.linear_attention import LinearAttention
from lockstep.models.mixers.retention import Retention
from lockstep.models.mlp import SwiGlu
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec, heads_divide

CHUNKS: tuple[dict[str, Any], ...] = ({"chunk": 4}, {"chunk": 8, "heads": 1}, {"chunk": 64, "hidden": 24})
"""At the laws' size: several chunks, and one that holds everything."""


@architecture("linear-attention")
class LinearAttentionSpec(ModelSpec):
    """A mean of all values so far, by the kernel elu(x) + 1 (Katharopoulos et al., arXiv 2006.16236).

    Without their learned positions, which would end a sequence at the last of them: what a token finds of the order
    before it comes from causality alone.
    """

    variants: ClassVar[tuple[dict[str, Any], ...]] = CHUNKS

    chunk: PositiveInt = 64
    """Tokens worked on as one; no result depends on it."""

    @model_validator(mode="after")
    def _heads_fit(self) -> LinearAttentionSpec:
        heads_divide(self.dim, self.heads)
        return self

    def mixer(self, layer: int) -> LinearAttention:
        return LinearAttention(self.dim, self.heads, self.chunk)


@architecture("retnet")
class RetNetSpec(ModelSpec):
    """Sun et al. (arXiv 2307.08621), whose MLP is half as wide as others', to make up for the wide values."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = CHUNKS

    chunk: PositiveInt = 64
    """Tokens worked on as one; no result depends on it."""
    rope_theta: PositiveFloat = 10_000.0

    @model_validator(mode="after")
    def _heads_fit(self) -> RetNetSpec:
        if heads_divide(self.dim, self.heads) % 2:
            raise ValueError(f"rotary heads must be even: dim {self.dim} / heads {self.heads} is odd")
        return self

    def mixer(self, layer: int) -> Retention:
        return Retention(self.dim, self.heads, chunk=self.chunk, rope_theta=self.rope_theta, max_length=self.max_length)

    def mlp(self, layer: int) -> SwiGlu:
        return SwiGlu(self.dim, self.hidden or -(-self.dim * 4 // 3 // 16) * 16)
