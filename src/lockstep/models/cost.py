"""What a model costs: counted from its shapes, and checked against measurement by the laws.

Conventions. One multiply-add is two FLOPs. Attention scores are counted dense, the masked half too, as torch's
counter does. Of all other work only element-wise recurrences count, by formula; the rest is below notice.
Training costs three times the forward pass, one for it and two for the gradients with respect to inputs and weights,
and decoding a token costs its share of a forward pass, except where a part says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs add up: a model's is the sum of its parts'."""

    parameters: int = 0
    """All trainable numbers, each once."""
    embedding_parameters: int = 0
    """Those of tables that are looked up: tokens, positions, and an untied output table."""
    matrix_parameters: int = 0
    """Those that multiply a token's vector; a tied output table is one of them."""
    forward_flops: float = 0.0
    """Per token, at the length asked for."""
    training_extra: float = 0.0
    """Per token, what training costs beyond three forward passes; negative where a derivative is not needed."""
    decoding_extra: float = 0.0
    """What the token after that length costs beyond its share of a forward pass; negative where it costs less."""
    recurrence_flops: float = 0.0
    """Per token, of element-wise recurrences, forward; no counter sees them."""
    state_bytes: int = 0
    """Per sequence, after the length asked for."""

    @property
    def training_flops(self) -> float:
        """Per token, forward and backward."""
        return 3 * (self.forward_flops + self.recurrence_flops) + self.training_extra

    @property
    def decoding_flops(self) -> float:
        """Of one token, in a cache that holds the length asked for."""
        return self.forward_flops + self.recurrence_flops + self.decoding_extra

    @property
    def non_embedding_parameters(self) -> int:
        """What matching usually compares."""
        return self.parameters - self.embedding_parameters

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))


def product_flops(*shape: int) -> float:
    """FLOPs per token of a matrix of this shape applied to one row."""
    inputs, outputs = shape
    return 2.0 * inputs * outputs
