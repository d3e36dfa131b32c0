"""What a token brings to a memory, as the kernel of `token_step` takes it: rows and gates, or what they are made of.

In the latter case it may also say how what is read is normalised.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

AT_ONCE = 1024
"""Numbers of what a layer is given that a program multiplies at once, at most."""


class Given(NamedTuple):
    """What a token brings."""

    queries: Tensor  # [batch, heads, width], and so on for keys and values
    keys: Tensor
    values: Tensor
    keep: Tensor  # [batch, heads], and so on for the other gates
    rate: Tensor
    momentum: Tensor | None
    threshold: Tensor | None

    @property
    def tensors(self) -> list[Tensor | None]:
        """As the kernel takes them."""
        return [*self, *[None] * 6]

    @property
    def dtype(self) -> torch.dtype:
        """Of what is read."""
        return self.queries.dtype

    @property
    def constants(self) -> dict[str, Any]:
        """As the kernel takes them; without a tail it asks for none of these."""
        kind = {"DECAY": True, "THRESHOLD": False, "LARGEST": 0.0, "EPSILON": 0.0, "READ_EPSILON": 0.0}
        return kind | {"weight_stride": 0, "TAPS": 0, "DIM": 0, "BLOCK": 0}


class Projected(NamedTuple):
    """What that is made of, see `NeuralMemory.rows` and `NeuralMemory.gate_values`."""

    queries: Tensor  # and keys and values: [batch, 3 × heads × width], in one piece
    weight: Tensor  # [taps, 3 × heads × width], of a convolution
    tail: Tensor  # [batch, taps - 1, 3 × heads × width] of what came before: written over
    x: Tensor  # [batch, dim], what the layer is given, in one piece
    gate_weight: Tensor  # [gates × heads, dim]
    gate_bias: Tensor  # [gates × heads]
    epsilon: float
    """What a length is at least."""
    decay: bool
    """Whether the first gate is there: without it everything is kept."""
    threshold: bool
    """Whether the last one is a threshold."""
    largest: float
    """Rate."""
    read_norm: Tensor | None  # [width]: the weight of a norm of what each head has read, if there is to be one
    read_epsilon: float

    @property
    def tensors(self) -> list[Tensor | None]:
        return [self.queries, *[None] * 6, *self[1:6], self.read_norm]

    @property
    def dtype(self) -> torch.dtype:
        return (self.queries if self.read_norm is None else self.read_norm).dtype

    @property
    def constants(self) -> dict[str, Any]:
        dim = self.x.shape[-1]
        kind = {"DECAY": self.decay, "THRESHOLD": self.threshold, "LARGEST": self.largest, "EPSILON": self.epsilon}
        sizes = {"TAPS": self.weight.shape[0], "DIM": dim, "BLOCK": min(1 << (dim - 1).bit_length(), AT_ONCE)}
        return kind | sizes | {"weight_stride": self.weight.stride(0), "READ_EPSILON": self.read_epsilon}
