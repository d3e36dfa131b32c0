"""A short causal convolution over time, each channel on its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.memory.derivatives import only_first

Bars = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Adjoints of the inputs, of the tail, of weights and biases."""


class ShortConvolution(nn.Module):
    """Each output is a weighted sum of the last `width` inputs of its channel; what it carries is the inputs before."""

    def __init__(self, channels: int, width: int, *, bias: bool = False) -> None:
        super().__init__()
        self.channels, self.width = channels, width
        # Three dimensions, as torch's own: decayed as matrices are, and not orthogonalised.
        self.weight = nn.Parameter(torch.empty(width, 1, channels))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.initialise()

    def forward(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """x [batch, time, channels] after tail [batch, width - 1, channels], and the tail after it.

        Fewer channels than there are weights means the first of them.
        """
        channels = tail.shape[-1]
        before, weight = tail.to(x.dtype), self.weight[:, 0, :channels].to(x.dtype)
        bias = None if self.bias is None else self.bias[:channels].to(x.dtype)
        sums: Callable[..., Tensor] = (_GatheredSums if torch.compiler.is_compiling() else _ShiftedSums).apply
        return sums(x, before, weight, bias), tail_after(x, tail)

    def initial_tail(self, batch: int, channels: int | None = None) -> Tensor:
        return self.weight.new_zeros(batch, self.width - 1, channels or self.channels)

    @torch.no_grad()
    def initialise(self) -> None:
        """Nearly the identity, so that a layer begins by seeing its own token."""
        nn.init.normal_(self.weight, std=0.1)
        self.weight[-1] += 1
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @torch.no_grad()
    def initialise_as_torch(self) -> None:
        """As torch's own convolutions begin, and with them those of published code that leaves them alone."""
        bound = self.width**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)


def tail_after(x: Tensor, tail: Tensor) -> Tensor:
    """The last inputs of both, as many as a tail has: x [batch, time, channels], tail [batch, width - 1, channels]."""
    last = x[:, max(x.shape[1] - tail.shape[1], 0) :]
    # Copied, because a view would keep the whole sequence alive.
    return torch.cat((tail.to(x.dtype), last), dim=1)[:, last.shape[1] :].to(tail.dtype, copy=True)


def shifted_sums(joined: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """joined [batch, time + width - 1, channels], weight [width, channels], bias [channels]."""
    time = joined.shape[1] - len(weight) + 1
    y = joined[:, :time] * weight[0]
    for shift in range(1, len(weight)):
        y = torch.addcmul(y, joined[:, shift : shift + time], weight[shift])
    return y if bias is None else y + bias


class _ShiftedSums(torch.autograd.Function):
    """The same with its derivative written out: on a CPU, torch's grouped convolution takes twice as long for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tail: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [batch, time, channels], tail [batch, width - 1, channels], weight [width, channels], bias [channels]."""
        joined = torch.cat((tail, x), dim=1)
        ctx.save_for_backward(joined, weight)
        ctx.has_bias = bias is not None
        time = x.shape[1]
        first = joined[:, :time]
        y = first * weight[0] if bias is None else torch.addcmul(bias, first, weight[0])
        for shift in range(1, len(weight)):
            y.addcmul_(joined[:, shift : shift + time], weight[shift])
        return y

    @staticmethod
    @only_first
    def backward(ctx: Any, bar: Tensor) -> Bars:
        joined, weight = ctx.saved_tensors
        reach, time = len(weight) - 1, bar.shape[1]
        joined_bar, weight_bar = torch.zeros_like(joined), torch.empty_like(weight)
        for shift in range(len(weight)):
            joined_bar[:, shift : shift + time].addcmul_(bar, weight[shift])
            weight_bar[shift] = (bar * joined[:, shift : shift + time]).sum(dim=(0, 1))
        bias_bar = bar.sum(dim=(0, 1)) if ctx.has_bias else None
        return joined_bar[:, reach:], joined_bar[:, :reach], weight_bar, bias_bar


class _GatheredSums(torch.autograd.Function):
    """The same for a compiler, which fuses it with what stands around it.

    The derivative is a convolution too, the weights turned around: each adjoint is gathered, in one pass. Left to
    itself, torch would write the share of each weight in it, and add them up.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, tail: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, tail, weight)
        ctx.has_bias = bias is not None
        return shifted_sums(torch.cat((tail, x), dim=1), weight, bias)

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> Bars:
        x, tail, weight = ctx.saved_tensors
        joined, turned, reach, time = torch.cat((tail, x), dim=1), weight.flip(0), len(weight) - 1, bar.shape[1]
        around = F.pad(bar, (0, 0, reach, reach))  # [batch, time + 2 × (width - 1), channels]
        x_bar = shifted_sums(around[:, reach:], turned, None)
        tail_bar = shifted_sums(around[:, : 2 * reach], turned, None)
        weight_bar = [(bar * joined[:, shift : shift + time]).sum(dim=(0, 1)) for shift in range(len(weight))]
        return x_bar, tail_bar, torch.stack(weight_bar), bar.sum(dim=(0, 1)) if ctx.has_bias else None
