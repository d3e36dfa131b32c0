"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, GELU, biases."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, model_validator
from torch import nn

from lockstep.models.mixers.attention import Attention
from lockstep.models.mlp import Activation, Mlp
from lockstep.models.registry import architecture
from lockstep.models.spec import ModelSpec, Probability, heads_divide

AnyCaseActivation = Annotated[Activation, BeforeValidator(lambda name: name.lower() if isinstance(name, str) else name)]


@architecture("gpt2")
class Gpt2Spec(ModelSpec):
    """A decoder as published."""

    learned_positions: ClassVar[bool] = True
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"hidden": 24, "activation": "relu", "tie_embeddings": False})

    activation: AnyCaseActivation = "gelu_tanh"
    attention_dropout: Probability = 0.0

    @model_validator(mode="after")
    def _heads_fit(self) -> Gpt2Spec:
        heads_divide(self.dim, self.heads)
        return self

    def mixer(self, layer: int) -> Attention:
        return Attention(
            self.dim,
            self.heads,
            causal=self.causal,
            bias=True,
            dropout=self.attention_dropout,
            max_length=self.max_length,
        )

    def mlp(self, layer: int) -> Mlp:
        return Mlp(self.dim, self.hidden or 4 * self.dim, self.activation)

    def norm(self) -> nn.Module:
        return nn.LayerNorm(self.dim, eps=1e-5)
