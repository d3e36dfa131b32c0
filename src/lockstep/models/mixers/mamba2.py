"""Mamba-2 (Dao & Gu, arXiv 2405.21060): a state space model whose channels of a head forget alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.kernels.recurrences.decayed import CHUNK, lowered
from lockstep.kernels.rows import choice, gated, token
from lockstep.memory.ownership import is_given_up
from lockstep.memory.recomputation import recomputed
from lockstep.memory.types import arithmetic
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.convolution import ShortConvolution
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.rates import draw_rate_bias
from lockstep.models.recurrences.decayed import decayed, decayed_flops

EPSILON = 1e-5
FASTEST_DECAY = 16.0
"""Per unit of rate, at the beginning of training; the slowest is 1."""


class Mamba2State(NamedTuple):
    """What Mamba-2 carries."""

    tail: Tensor  # [batch, conv - 1, inner + 2 × groups × state_dim]
    memory: Tensor  # [batch, heads, state_dim, head_dim]


class Rows(NamedTuple):
    """What the recurrence is given, by the paper's letters: x, Δ·x, B, C and Δ·A."""

    values: Tensor  # [batch, heads, time, head_dim], as the convolution left them
    written: Tensor  # [batch, heads, time, head_dim]
    keys: Tensor  # [batch, groups, time, state_dim]
    queries: Tensor  # [batch, groups, time, state_dim]
    log_keep: Tensor  # [batch, heads, time]


class Mamba2(Mixer):
    """A rate (the paper's Δ) says how much of a value is written, and how long the head's decay (its A) works for it.

    Values, keys and queries are convolved, the latter two common to all heads of a group. What is read, and a share of
    the value itself (its D), is gated and then normalised, group by group as in the authors' code. Matrices begin as
    the skeleton's do, everything else as published.
    """

    def __init__(
        self, dim: int, *, inner: int, head_dim: int, state_dim: int, groups: int, conv: int, chunk: int
    ) -> None:
        """`inner` is the width of all values together."""
        super().__init__()
        self.inner, self.heads, self.head_dim = inner, inner // head_dim, head_dim
        self.state_dim, self.groups, self.chunk = state_dim, groups, chunk
        self.widths = (inner, groups * state_dim, groups * state_dim)
        self.input = nn.Linear(dim, inner + sum(self.widths) + self.heads, bias=False)
        self.conv = ShortConvolution(sum(self.widths), conv, bias=True)
        self.log_decay = nn.Parameter(torch.empty(self.heads))
        self.rate_bias = nn.Parameter(torch.empty(self.heads))
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.gain = nn.Parameter(torch.ones(inner))
        self.output = nn.Linear(inner, dim, bias=False)
        self.initialise()

    def step(self, x: Tensor, state: Mamba2State | None) -> tuple[Tensor, Mamba2State]:
        tail, memory = self.initial_state(x.shape[0]) if state is None else state
        gate, mixed, rates = self.projected(x)
        rows, tail = recomputed(self.rows, mixed, rates, tail)
        reads, memory = decayed(rows.queries, rows.keys, rows.written, rows.log_keep, memory, self.chunk)
        y: Tensor = self.output(self.gated(reads, rows.values, gate))
        return y, Mamba2State(tail, memory)

    def projected(self, x: Tensor) -> Sequence[Tensor]:
        """The gate, what is convolved, and rates: [batch, time, …] each."""
        widths = (self.inner, sum(self.widths), self.heads)
        if x.shape[1] > 1:
            # Cut out of one product, each part would be copied into one piece, and their adjoints would be joined.
            return [F.linear(x, weight) for weight in self.input.weight.split(widths)]
        # Decoding is bound by how many kernels it launches.
        parts: Sequence[Tensor] = self.input(x).split(widths, dim=-1)
        return parts

    def rows(self, mixed: Tensor, rates: Tensor, tail: Tensor) -> tuple[Rows, Tensor]:
        """From projections [batch, time, …], and the tail after them."""
        parts, tail = self.convolved(mixed, tail)
        values = parts[0].unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        keys, queries = (part.unflatten(-1, (self.groups, -1)).transpose(1, 2) for part in parts[1:])
        rate = F.softplus(rates.to(self.exact) + self.rate_bias).transpose(1, 2)
        log_keep = -self.log_decay.to(self.exact).exp()[:, None] * rate
        return Rows(values, values.to(self.exact) * rate[..., None], keys, queries, log_keep), tail

    def convolved(self, mixed: Tensor, tail: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        """Values, keys and queries [batch, time, …], activated, and the tail after them."""
        width = math.gcd(*self.widths, choice.WIDEST)
        heads = [count // width for count in self.widths]
        lengths = [0.0] * len(heads)
        if is_given_up() and token.takes(mixed, width, self.conv.width):
            made = token.run(mixed, self.conv.weight[:, 0], tail, self.conv.bias, heads, lengths, 0.0)
            return [part.flatten(1)[:, None] for part in made], tail
        if mixed.shape[1] % CHUNK or not lowered(mixed) or not choice.takes(mixed, width, self.conv.width):
            mixed, tail = self.conv(mixed, tail)
            return F.silu(mixed).split(self.widths, dim=-1), tail
        # Triton is needed where it is used alone.
        from lockstep.kernels.rows.operator import rows

        made, tail = rows(mixed, self.conv.weight[:, 0], tail, self.conv.bias, heads, lengths, 0.0, True)
        return [part.flatten(2) for part in made], tail

    def gated(self, reads: Tensor, values: Tensor, gate: Tensor) -> Tensor:
        """[batch, time, inner] from reads and values, heads first, and the gate."""
        if not gated.takes(reads, values, gate, self.groups):
            return recomputed(self.gated_by_torch, reads, values, gate)
        from lockstep.kernels.rows.gated_operator import gated as by_kernel

        tokens = (x.transpose(1, 2).flatten(2) for x in (reads, values))
        y: Tensor = by_kernel(*tokens, gate, self.skip, self.gain, self.groups, EPSILON)
        return y

    def gated_by_torch(self, reads: Tensor, values: Tensor, gate: Tensor) -> Tensor:
        reads, values = reads.to(self.exact), values.to(self.exact)
        said = torch.addcmul(reads, values, self.skip[:, None, None].to(self.exact)).transpose(1, 2).flatten(2)
        groups = (said * F.silu(gate)).unflatten(-1, (self.groups, -1))
        normal = F.rms_norm(groups, groups.shape[-1:], eps=EPSILON).flatten(2)
        return (normal * self.gain).to(gate.dtype)

    def initial_state(self, batch: int, capacity: int | None = None) -> Mamba2State:
        memory = self.zeros(batch, self.heads, self.state_dim, self.head_dim).to(self.exact)
        return Mamba2State(self.conv.initial_tail(batch), memory)

    @property
    def exact(self) -> torch.dtype:
        """What the recurrence is computed in."""
        return arithmetic(self.like.dtype)

    @torch.no_grad()
    def initialise(self) -> None:
        """Decays uniform and rates log-uniform over the heads; a convolution as torch's own."""
        self.conv.initialise_as_torch()
        self.log_decay.uniform_(1.0, FASTEST_DECAY).log_()
        draw_rate_bias(self.rate_bias)

    def cost(self, length: int) -> Cost:
        sizes = (self.groups, self.heads, self.state_dim, self.head_dim)
        forward = decayed_flops(length, self.chunk, *sizes)
        tail = (self.conv.width - 1) * self.conv.channels * self.like.element_size()
        return Cost(
            forward_flops=product_flops(*self.input.weight.shape) + product_flops(*self.output.weight.shape) + forward,
            decoding_extra=decayed_flops(1, self.chunk, *sizes) - forward,
            state_bytes=tail + self.inner * self.state_dim * self.exact.itemsize,
        )
