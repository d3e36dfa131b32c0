"""A short causal convolution over time, each channel on its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ShortConvolution(nn.Module):
    """Each output is a weighted sum of the last `width` inputs of its channel; what it carries is the inputs before."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.channels, self.width = channels, width
        self.weight = nn.Parameter(torch.empty(width, channels))
        self.initialise()

    def forward(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """x [batch, time, channels] after tail [batch, width - 1, channels], and the tail after it.

        Fewer channels than there are weights means the first of them.
        """
        time, channels = x.shape[1:]
        joined = torch.cat((tail.to(x.dtype), x), dim=1)
        weight = self.weight[:, :channels].to(x.dtype)
        y = joined[:, :time] * weight[0]
        # By shifted sums: on a CPU, torch's grouped convolution takes twice the time to differentiate.
        for shift in range(1, self.width):
            y = torch.addcmul(y, joined[:, shift : shift + time], weight[shift])
        # Cloned, because a view would keep the whole sequence alive.
        return y, joined[:, time:].to(tail.dtype, copy=True)

    def initial_tail(self, batch: int, channels: int | None = None) -> Tensor:
        return self.weight.new_zeros(batch, self.width - 1, channels or self.channels)

    @torch.no_grad()
    def initialise(self) -> None:
        """Nearly the identity, so that a layer begins by seeing its own token."""
        nn.init.normal_(self.weight, std=0.1)
        self.weight[-1] += 1
