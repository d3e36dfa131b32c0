"""How fast the selective recurrences begin: Mamba's, Mamba-2's and Gated DeltaNet's Δ, as published for all three."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SMALLEST_RATE, LARGEST_RATE = 1e-3, 0.1
"""At the beginning of training, for an input of zero."""


@torch.no_grad()
def draw_rate_bias(bias: Tensor) -> None:
    """Fill in biases whose softplus is a rate, drawn evenly in its logarithm."""
    rate = torch.empty_like(bias).uniform_(math.log(SMALLEST_RATE), math.log(LARGEST_RATE)).exp_()
    # The inverse of softplus.
    bias.copy_(rate + (-torch.expm1(-rate)).log())
