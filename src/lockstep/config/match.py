"""What makes contestants equal in size: one quantity, how much of it, and how nearly.

match: {on: non_embedding_parameters, target: 50M, tolerance: 1%}
scale: small
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat

from lockstep.config.spec import Spec

Quantity = Literal["non_embedding_parameters", "total_parameters", "training_flops", "state_bytes"]
Scale = Literal["tiny", "small", "medium", "large"]

SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def read_amount(value: Any) -> Any:
    """50M, 1.3B, 2e9: a number with at most one letter behind it."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([KMGBT]?)", value.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError("expected a number such as 50M or 1.3B")
    return float(found[1]) * SUFFIXES[found[2].upper()]


def read_share(value: Any) -> Any:
    """1% or 0.01."""
    if isinstance(value, str) and value.strip().endswith("%"):
        return float(value.strip()[:-1]) / 100
    return value


Amount = Annotated[PositiveFloat, BeforeValidator(read_amount)]
Share = Annotated[float, Field(gt=0, lt=1), BeforeValidator(read_share)]


class MatchSpec(Spec):
    """`match`: sizes are solved for, not given."""

    on: Quantity = "non_embedding_parameters"
    target: Amount
    """FLOPs are per token; they and the bytes of a state are those at the training length."""
    tolerance: Share = 0.01

    @property
    def quantity(self) -> str:
        """What is made equal, in words."""
        return self.on.replace("non_embedding", "non-embedding").replace("_", " ")


SCALES: dict[Scale, MatchSpec] = {
    "tiny": MatchSpec(target=1e6),
    "small": MatchSpec(target=50e6),
    "medium": MatchSpec(target=360e6),
    "large": MatchSpec(target=760e6),
}
"""The last three are sizes at which the papers report; the first trains in minutes on two cores."""
