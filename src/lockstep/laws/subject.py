"""What a law judges: one architecture under one setting of its fields, at a size that is checked in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.config.spec import validate
from lockstep.models.language_model import LanguageModel
from lockstep.models.registry import find
from lockstep.models.spec import ModelSpec

SMALL: dict[str, Any] = {"vocab_size": 17, "dim": 16, "depth": 2, "heads": 2, "max_length": 64}
"""The laws' size; a variant may say otherwise. Sequences of the laws are at most `max_length` long."""

LENGTH = 29
"""Tokens in most laws: several chunks, segments or windows of a variant, and a multiple of none of them."""


@dataclass(frozen=True)
class Subject:
    """A specification class and the fields of one of its variants; models are built fresh for each law."""

    kind: type[ModelSpec]
    variant: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.kind.architecture or self.kind.__name__

    @property
    def label(self) -> str:
        """The variant in words."""
        return ", ".join(f"{key}={value}" for key, value in self.variant.items()) or "default"

    def spec(self, **overrides: Any) -> ModelSpec:
        """The small specification; overrides win over the variant, which wins over SMALL."""
        return validate(self.kind, {**SMALL, **self.variant, **overrides}, f"{self.name} ({self.label})")

    def fresh(self, dtype: torch.dtype = torch.float32, seed: int = 0, **overrides: Any) -> LanguageModel:
        """A model as its own initialisation leaves it, in evaluation mode."""
        spec = self.spec(**overrides)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return spec.build().to(dtype).eval()

    def model(self, dtype: torch.dtype = torch.float64, seed: int = 0, **overrides: Any) -> LanguageModel:
        """A model with every parameter random, so that nothing hides behind a zero."""
        model = self.fresh(torch.float64, seed, **overrides)
        randomise(model, seed)
        return model.to(dtype)

    def tokens(self, batch: int, time: int, seed: int = 0) -> Tensor:
        """Random token ids [batch, time]."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.spec().vocab_size, (batch, time), generator=generator)

    def replaced(self, tokens: Tensor, seed: int = 0) -> Tensor:
        """Other token ids: every one differs from the one it replaces."""
        vocabulary = self.spec().vocab_size
        generator = torch.Generator().manual_seed(seed)
        shift = torch.randint(1, vocabulary, tokens.shape, generator=generator)
        return (tokens + shift) % vocabulary


def subjects(name: str) -> list[Subject]:
    """One subject per variant of a registered architecture, or of an outsider's `file.py:name`."""
    return subjects_of(find(name))


def subjects_of(kind: type[ModelSpec]) -> list[Subject]:
    """One subject per variant of a specification, registered or not."""
    return [Subject(kind, variant) for variant in kind.variants]


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Draw every parameter anew: matrices at a gain that keeps signals alive, norm gains and biases around zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        scale = 1.0 if parameter.ndim < 2 else 1.25 / math.sqrt(parameter.shape[-1])
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_(scale * drawn)
