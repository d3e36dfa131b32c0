"""Mamba (Gu & Dao, arXiv 2312.00752): a convolution, and states that each token decides to write and to forget."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.memory.recomputation import never_kept
from lockstep.memory.types import arithmetic
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.convolution import ShortConvolution
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.rates import draw_rate_bias
from lockstep.models.recurrences.selective import selective_scan


class MambaState(NamedTuple):
    """What Mamba carries."""

    tail: Tensor  # [batch, d_conv - 1, channels], of the convolution
    memory: Tensor  # [batch, d_state, channels], in at least float32


class Mamba(Mixer):
    """Of `expand` × dim channels each has `d_state` numbers, which decay (the paper's A) each in its own time.

    A rate (its Δ) says how much of a channel's value is written, and how long the decay works for it; keys (its B) and
    queries (its C) are common to all channels. What is read, and a share of the value itself (its D), is gated.
    Matrices begin as the skeleton's do, everything else as published.
    """

    def __init__(self, dim: int, *, d_state: int, d_conv: int, expand: int, dt_rank: int, chunk: int) -> None:
        """`dt_rank` is the rank of the map to the rates."""
        super().__init__()
        self.channels, self.d_state, self.dt_rank, self.chunk = expand * dim, d_state, dt_rank, chunk
        self.input = nn.Linear(dim, 2 * self.channels, bias=False)
        self.conv = ShortConvolution(self.channels, d_conv, bias=True)
        self.selection = nn.Linear(self.channels, dt_rank + 2 * d_state, bias=False)
        self.rate = nn.Linear(dt_rank, self.channels)
        # One dimension, because weight decay takes whatever has more.
        self.log_decay = nn.Parameter(torch.empty(d_state * self.channels))
        self.skip = nn.Parameter(torch.empty(self.channels))
        self.output = nn.Linear(self.channels, dim, bias=False)

    def step(self, x: Tensor, state: MambaState | None) -> tuple[Tensor, MambaState]:
        if state is None:
            state = self.initial_state(x.shape[0])
        values, gate = self.input(x).chunk(2, dim=-1)
        values, tail = never_kept(self.convolved, values, state.tail)
        reads, memory = self.scanned(values, state.memory)
        # Not made again with its gating: what one function has made and another takes, a compiler keeps. As a sum of a
        # product, because the derivative of `addcmul` has the values in 32 bits, which are kept too.
        said = (reads + values * self.skip.to(reads.dtype)).to(gate.dtype)
        y: Tensor = self.output(never_kept(gated, said, gate))
        return y, MambaState(tail, memory)

    def convolved(self, values: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        """Values [batch, time, channels] from their projection, activated, and the tail after them."""
        values, tail = self.conv(values, tail)
        return F.silu(values), tail

    def scanned(self, values: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What each channel reads at each token, [batch, time, channels], and the memory after the last."""
        low, keys, queries = self.selection(values).split((self.dt_rank, self.d_state, self.d_state), dim=-1)
        rate = never_kept(self.rates, F.linear(low, self.rate.weight))
        decay = self.log_decay.to(self.exact).exp().view(self.d_state, self.channels)
        return selective_scan(queries, keys, values, rate, decay, memory, self.chunk)

    def rates(self, projected: Tensor) -> Tensor:
        """[batch, time, channels] in at least float32, from a product, which is kept in its own precision."""
        # The bias sets rates of a thousandth, which a lower precision would blur.
        return F.softplus(projected.to(self.exact) + self.rate.bias)

    def initial_state(self, batch: int, capacity: int | None = None) -> MambaState:
        memory = self.zeros(batch, self.d_state, self.channels).to(self.exact)
        return MambaState(self.conv.initial_tail(batch), memory)

    @property
    def exact(self) -> torch.dtype:
        """What the recurrence is computed in."""
        return arithmetic(self.like.dtype)

    @torch.no_grad()
    def initialise(self) -> None:
        """Rates log-uniform over the channels, decays of 1, 2, 3 and so on; a convolution as torch's own."""
        self.conv.initialise_as_torch()
        bound = self.dt_rank**-0.5
        nn.init.uniform_(self.rate.weight, -bound, bound)
        draw_rate_bias(self.rate.bias)
        decay = torch.arange(1, self.d_state + 1, device=self.skip.device, dtype=self.skip.dtype)
        self.log_decay.copy_(decay.log().repeat_interleave(self.channels))
        nn.init.ones_(self.skip)

    def cost(self, length: int) -> Cost:
        """Reading is a product and counts as one; its derivative has three, one of them with respect to the keys.

        The recurrence counts (4 d_state + 1) × channels: for each state rate × decay, key × written, keep × state and
        the sum of the last two; for each channel rate × value. Exponentials are left out.
        """
        matrices = (self.input, self.selection, self.rate, self.output)
        reading = 2.0 * self.d_state * self.channels
        tail = (self.conv.width - 1) * self.channels * self.like.element_size()
        return Cost(
            forward_flops=sum(product_flops(*matrix.weight.shape) for matrix in matrices) + reading,
            training_extra=reading if length > 1 else 0.0,
            recurrence_flops=(4.0 * self.d_state + 1) * self.channels,
            state_bytes=tail + self.d_state * self.channels * self.exact.itemsize,
        )


def gated(said: Tensor, gate: Tensor) -> Tensor:
    """What the last product takes."""
    return said * F.silu(gate)
