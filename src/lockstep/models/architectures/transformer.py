"""Transformer++: RoPE, RMSNorm, SwiGLU, no biases; the Llama recipe that others are compared with."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import PositiveFloat, PositiveInt, model_validator

from lockstep.models.mixers.attention import Attention
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec, Probability, heads_divide


@architecture("transformer++")
class TransformerSpec(ModelSpec):
    """A decoder with rotary attention."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"kv_heads": 1},
        {"window": 5},
        {"window": 1},
        {"hidden": 24, "tie_embeddings": False},
    )

    kv_heads: PositiveInt | None = None
    """Grouped heads: fewer keys and values than queries; as many by default."""
    window: PositiveInt | None = None
    """Sliding window, the token itself included; None sees everything."""
    rope_theta: PositiveFloat = 10_000.0
    attention_dropout: Probability = 0.0

    @model_validator(mode="after")
    def _heads_fit(self) -> TransformerSpec:
        if heads_divide(self.dim, self.heads) % 2:
            raise ValueError(f"rotary heads must be even: dim {self.dim} / heads {self.heads} is odd")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"heads {self.heads} is not divisible by kv_heads {self.kv_heads}")
        return self

    def mixer(self, layer: int) -> Attention:
        return Attention(
            self.dim,
            self.heads,
            kv_heads=self.kv_heads,
            window=self.window,
            rope_theta=self.rope_theta,
            dropout=self.attention_dropout,
            max_length=self.max_length,
        )

    @property
    def reach(self) -> int | None:
        return None if self.window is None else self.depth * (self.window - 1)
