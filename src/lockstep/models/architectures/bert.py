"""BERT (Devlin et al., arXiv 1810.04805): bidirectional, post-norm, with an embedding norm and a masked-LM head."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from lockstep.models.architectures.gpt2 import AnyCaseActivation, Gpt2Spec
from lockstep.models.block import Block, PostNormBlock
from lockstep.models.registry import architecture


@architecture("bert")
class BertSpec(Gpt2Spec):
    """An encoder trained on masked tokens; it has no `step` and a track of its own.

    Segment vectors are left out: a packed stream has one segment, and its vector would only shift the position table.
    """

    causal: ClassVar[bool] = False
    embedding_norm: ClassVar[bool] = True
    output_bias: ClassVar[bool] = True
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"hidden": 24})

    activation: AnyCaseActivation = "gelu"

    def norm(self) -> nn.Module:
        return nn.LayerNorm(self.dim, eps=1e-12)

    def block(self, layer: int) -> Block:
        return PostNormBlock(self.mixer(layer), self.mlp(layer), (self.norm(), self.norm()), self.dropout)

    def final_norm(self) -> nn.Module:
        return nn.Identity()

    def output_transform(self) -> nn.Module:
        return nn.Sequential(nn.Linear(self.dim, self.dim), nn.GELU(), self.norm())
