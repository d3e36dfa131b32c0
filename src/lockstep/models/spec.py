"""What an architecture is: a specification that knows how to build its parts.

A new architecture subclasses `ModelSpec`, declares its own fields, and says what its mixer is. What it does not
say is the skeleton's: pre-norm blocks with RMSNorm and a SwiGLU, no positions, tied embeddings, no biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import nn

from lockstep.config.spec import Spec
from lockstep.models.block import Block
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mlp import Mlp, SwiGlu

if TYPE_CHECKING:
    from lockstep.models.language_model import LanguageModel

Probability = Annotated[float, Field(ge=0, lt=1)]


class ModelSpec(Spec):
    """The fields every architecture accepts, and the parts of the skeleton."""

    architecture: ClassVar[str] = ""
    """The registered name."""
    source: ClassVar[str | None] = None
    """The sha256 of the file it is written in; None for one of Lockstep's own."""
    causal: ClassVar[bool] = True
    """Whether an output depends on its own and earlier tokens only."""
    has_heads: ClassVar[bool] = True
    """Whether `heads` means anything to it."""
    learned_positions: ClassVar[bool] = False
    embedding_norm: ClassVar[bool] = False
    output_bias: ClassVar[bool] = False
    free: ClassVar[tuple[str, ...]] = ("dim", "depth", "heads", "hidden")
    """Fields that matching may choose."""
    aspect: ClassVar[float] = 64.0
    """Width over depth that matching aims at; lower where a layer is half of what others call one."""
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    """Field settings, at the laws' small size, under which the laws visit this architecture."""

    vocab_size: PositiveInt
    dim: PositiveInt = 256
    depth: PositiveInt = 4
    heads: PositiveInt = 4
    """Accepted by every architecture; one without heads has no use for it."""
    hidden: PositiveInt | None = None
    """Width of the MLP; an architecture's own choice by default, and of no use to one without."""
    max_length: PositiveInt = 1024
    """Learned positions, tables of angles, and the capacity of a cache where none is asked for."""
    dropout: Probability = 0.0
    tie_embeddings: bool = True

    def build(self) -> LanguageModel:
        """The model; one that is not made of our blocks says so here."""
        # The model is built from a specification, so that its module imports this one.
        from lockstep.models.language_model import LanguageModel

        return LanguageModel(self)

    def unfilled(self) -> LanguageModel:
        """The model that a checkpoint's weights are about to fill, so that its own need not be found."""
        return self.build()

    def mixer(self, layer: int) -> Mixer:
        """The token mixer of one layer: what makes the architecture."""
        raise NotImplementedError

    def mlp(self, layer: int) -> Mlp | SwiGlu | None:
        """The channel mixer; a SwiGLU of 8/3 × dim rounded up to 32 unless an architecture says otherwise."""
        return SwiGlu(self.dim, self.hidden or -(-self.dim * 8 // 3 // 32) * 32)

    def norm(self) -> nn.Module:
        return nn.RMSNorm(self.dim, eps=1e-6)

    def block(self, layer: int) -> Block:
        return Block(self.mixer(layer), self.mlp(layer), (self.norm(), self.norm()), self.dropout)

    def final_norm(self) -> nn.Module:
        return self.norm()

    def output_transform(self) -> nn.Module:
        """What stands between the last norm and the output table."""
        return nn.Identity()

    @classmethod
    def brings_weights(cls, fields: Mapping[str, Any]) -> bool:
        """Whether these fields name trained weights, and so sizes that nobody can choose."""
        return False

    @property
    def mlp_width(self) -> int | None:
        """Of the channel mixer; None where there is none."""
        with torch.device("meta"):
            mlp = self.mlp(0)
        return None if mlp is None else mlp.output.in_features

    @property
    def is_its_layers(self) -> bool:
        """Whether nothing but its layers tells it from others, so that they can be parts of another model."""
        return self.causal and not (self.learned_positions or self.embedding_norm or self.output_bias)

    @property
    def period(self) -> int:
        """After how many layers their kinds repeat."""
        return 1

    @property
    def reach(self) -> int | None:
        """How many earlier tokens can reach an output; None means all of them."""
        return None


def heads_divide(dim: int, heads: int) -> int:
    """The width of a head, or an error that says both numbers."""
    if dim % heads:
        raise ValueError(f"dim {dim} is not divisible by heads {heads}")
    return dim // heads
