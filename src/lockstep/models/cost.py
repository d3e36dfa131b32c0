"""What a model costs: counted from its shapes, and checked against measurement by the laws.

Conventions. One multiply-add is two FLOPs. Attention scores are counted dense, the masked half too, as torch's
counter does. Only matrix products count; element-wise work and triangular solves are below the counter's notice.
Training costs three times the forward pass, one for it and two for the gradients with respect to inputs and weights,
except where a part says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs add up: a model's is the sum of its parts'."""

    parameters: int = 0
    """All trainable numbers, each once."""
    embedding_parameters: int = 0
    """Those of tables that are looked up: tokens, positions, and an untied output table."""
    forward_flops: float = 0.0
    """Per token, at the length asked for."""
    state_bytes: int = 0
    """Per sequence, after the length asked for."""
    extra_flops: float = 0.0
    """Per token, what training costs beyond three forward passes; negative where a derivative is not needed."""

    @property
    def training_flops(self) -> float:
        """Per token, forward and backward."""
        return 3 * self.forward_flops + self.extra_flops

    @property
    def non_embedding_parameters(self) -> int:
        """What matching usually compares."""
        return self.parameters - self.embedding_parameters

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.parameters + other.parameters,
            self.embedding_parameters + other.embedding_parameters,
            self.forward_flops + other.forward_flops,
            self.state_bytes + other.state_bytes,
            self.extra_flops + other.extra_flops,
        )


def product_flops(*shape: int) -> float:
    """FLOPs per token of a matrix of this shape applied to one row."""
    inputs, outputs = shape
    return 2.0 * inputs * outputs
