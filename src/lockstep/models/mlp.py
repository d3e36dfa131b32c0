"""The channel mixer of a block: what each token does on its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.models.cost import Cost, product_flops

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class Mlp(nn.Module):
    """Two matrices with an activation between them."""

    def __init__(self, dim: int, hidden: int, activation: Activation, *, bias: bool = True) -> None:
        super().__init__()
        self.input = nn.Linear(dim, hidden, bias=bias)
        self.output = nn.Linear(hidden, dim, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.output(self.activation(self.input(x)))
        return y

    def cost(self) -> Cost:
        return Cost(forward_flops=product_flops(*self.input.weight.shape) + product_flops(*self.output.weight.shape))


class SwiGlu(nn.Module):
    """A SiLU-gated unit (Shazeer, arXiv 2002.05202), without biases."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(dim, 2 * hidden, bias=False)
        self.output = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.input(x).chunk(2, dim=-1)
        y: Tensor = self.output(F.silu(gate) * up)
        return y

    def cost(self) -> Cost:
        return Cost(forward_flops=product_flops(*self.input.weight.shape) + product_flops(*self.output.weight.shape))
