"""Layers of several architectures in one model, by a pattern: Samba, Gated DeltaNet-H, and whatever one line can say.

model: {architecture: hybrid, pattern: [mamba2, mamba2, "attention:window=2048"], dim: 512, depth: 12, heads: 8}
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from lockstep.config.files import parse_yaml
from lockstep.config.spec import Name
from lockstep.errors import UserError
from lockstep.models.block import Block
from lockstep.models.registry import architecture, specify
from lockstep.models.spec import ModelSpec

ALIASES = {"attention": "transformer++"}

OF_THE_MODEL = {"vocab_size", "dim", "depth", "max_length", "tie_embeddings"}
"""Fields in which layers cannot differ."""
SMALL_WINDOW = "attention:window=5"
"""At the laws' size."""


@architecture("hybrid")
class HybridSpec(ModelSpec):
    """Layers in a pattern that is repeated to the model's depth."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {"pattern": ["gru", SMALL_WINDOW]},
        {"pattern": ["titans-lmm:chunk=4", "attention"], "depth": 3},
        {"pattern": [SMALL_WINDOW, "attention:window=3,kv_heads=1"]},
    )

    pattern: Annotated[tuple[Name, ...], Field(min_length=1)] = ("mamba2", "mamba2", "attention:window=2048")
    """Each an architecture, or `attention`, with fields of its own: `name:field=value,field=value`."""

    @model_validator(mode="after")
    def _layers_fit(self) -> HybridSpec:
        for layer in self.parts:
            if isinstance(layer, HybridSpec) or not layer.is_its_layers:
                raise ValueError(f"pattern: {layer.architecture} is more than its layers and cannot be a part")
        return self

    @cached_property
    def parts(self) -> tuple[ModelSpec, ...]:
        """The specification of each layer of the pattern, as a model of one layer."""
        own = {"vocab_size", "dim", "heads", "hidden", "max_length", "dropout"}
        common = self.model_dump(include=own) | {"depth": 1}
        return tuple(specify(*read_layer(text, common), source=f"pattern: {text}") for text in self.pattern)

    def block(self, layer: int) -> Block:
        return self.parts[layer % len(self.parts)].block(layer)

    @property
    def mlp_width(self) -> int | None:
        return next((part.mlp_width for part in self.parts if part.mlp_width is not None), None)

    @property
    def period(self) -> int:
        return len(self.pattern)

    @property
    def reach(self) -> int | None:
        reaches = [self.parts[layer % len(self.parts)].reach for layer in range(self.depth)]
        return None if None in reaches else sum(one for one in reaches if one is not None)


def read_layer(text: str, common: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """`mamba2` or `attention:window=2048`: the architecture and its fields."""
    found = re.fullmatch(r"(?P<name>[^=]+?)(:(?P<settings>\w+\s*=.*))?", text)
    if found is None or (":" in found["name"] and ".py:" not in found["name"]):
        raise UserError(f"pattern: {text}: expected name:field=value,field=value")
    fields: dict[str, Any] = {}
    for setting in filter(None, (found["settings"] or "").split(",")):
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"pattern: {text}: expected name:field=value,field=value")
        if key.strip() in OF_THE_MODEL:
            raise UserError(f"pattern: {text}: {key.strip()} belongs to the whole model, not to a layer")
        fields[key.strip()] = parse_yaml(f"value: {value}", f"pattern: {text}")["value"]
    name = found["name"].strip()
    return ALIASES.get(name, name), common | fields


@architecture("samba")
class SambaSpec(HybridSpec):
    """Mamba and windowed attention by turns, an MLP after each (Ren et al., arXiv 2406.07522)."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = ({"pattern": ["mamba:use_mlp=true,chunk=4", SMALL_WINDOW]},)

    pattern: Annotated[tuple[Name, ...], Field(min_length=1)] = ("mamba:use_mlp=true", "attention:window=2048")


@architecture("gated-deltanet-h")
class GatedDeltaNetHybridSpec(HybridSpec):
    """Gated DeltaNet and windowed attention by turns: H1 of Yang et al. (arXiv 2412.06464)."""

    variants: ClassVar[tuple[dict[str, Any], ...]] = ({"pattern": ["gated-deltanet:chunk=4", SMALL_WINDOW]},)

    pattern: Annotated[tuple[Name, ...], Field(min_length=1)] = ("gated-deltanet", "attention:window=2048")
