"""Memories that are written by the delta rule: DeltaNet's, and Gated DeltaNet's, which also forget."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.kernels.recurrences.decayed import CHUNK, lowered
from lockstep.kernels.rows import choice, token
from lockstep.memory.ownership import is_given_up
from lockstep.memory.types import arithmetic
from lockstep.models.cost import Cost, product_flops
from lockstep.models.mixers.convolution import ShortConvolution
from lockstep.models.mixers.mixer import Mixer
from lockstep.models.mixers.neural_memory import UNIT_EPSILON, Tail, normed, unit
from lockstep.models.mixers.rates import draw_rate_bias
from lockstep.models.recurrences.delta import delta_rule, delta_rule_cost

EPSILON = 1e-5
FASTEST = 16.0
"""Gated DeltaNet's heads forget at speeds drawn between 0 and this, times the step that a token takes."""


class DeltaState(NamedTuple):
    """What a layer carries."""

    tail: Tail  # [batch, conv - 1, heads × (2 × key_dim + value_dim)]
    memory: Tensor  # [batch, heads, key_dim, value_dim]


class DeltaNet(Mixer):
    """Keys and queries of norm one, a rate between 0 and 1 for each token and head, and reads normalised per head."""

    def __init__(self, dim: int, heads: int, key_dim: int, value_dim: int, *, conv: int, chunk: int) -> None:
        """`conv` is the width of the convolution, 0 or 1 being none; `chunk` changes the speed, and nothing else."""
        super().__init__()
        self.heads, self.key_dim, self.value_dim, self.chunk = heads, key_dim, value_dim, chunk
        self.widths = (heads * key_dim, heads * key_dim, heads * value_dim)
        self.qkv = nn.Linear(dim, sum(self.widths), bias=False)
        self.conv = ShortConvolution(sum(self.widths), conv) if conv > 1 else None
        self.rate = nn.Linear(dim, heads, bias=False)
        self.norm = nn.RMSNorm(value_dim, eps=EPSILON)
        self.output = nn.Linear(heads * value_dim, dim, bias=False)

    def step(self, x: Tensor, state: DeltaState | None) -> tuple[Tensor, DeltaState]:
        if state is None:
            state = self.initial_state(x.shape[0])
        queries, keys, values, tail = self.rows(self.qkv(x), state.tail)
        rate = self.rate(x).to(state.memory.dtype).sigmoid().transpose(1, 2)
        reads, memory = delta_rule(queries, keys, values, rate, self.log_keep(x), state.memory, self.chunk)
        y: Tensor = self.output(self.said(normed(self.norm, reads.transpose(1, 2)).flatten(2), x))
        return y, DeltaState(tail, memory)

    def rows(self, qkv: Tensor, tail: Tail) -> tuple[Tensor, Tensor, Tensor, Tail]:
        """Queries, keys and values [batch, heads, time, width] from their projections."""
        if self.in_place(qkv):
            return self.made_in_place(qkv, tail)
        if self.by_kernel(qkv):
            return self.made_at_once(qkv, tail)
        if self.conv is not None:
            qkv, tail = self.conv(qkv, tail)
        parts = F.silu(qkv.to(arithmetic(qkv.dtype))).split(self.widths, dim=-1)
        queries, keys, values = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        return unit(queries) * self.key_dim**-0.5, unit(keys), values, tail

    def by_kernel(self, qkv: Tensor) -> bool:
        """Whether our kernel makes the rows: where another of ours takes them."""
        if self.conv is None or self.value_dim % self.key_dim or qkv.shape[1] % CHUNK or not lowered(qkv):
            return False
        return choice.takes(qkv, self.key_dim, self.conv.width)

    def made_at_once(self, qkv: Tensor, tail: Tail) -> tuple[Tensor, Tensor, Tensor, Tail]:
        """`rows` by that kernel, to which values are of heads as wide as keys."""
        # Triton is needed where it is used alone.
        from lockstep.kernels.rows.operator import rows

        assert self.conv is not None
        assert isinstance(tail, Tensor)
        made, tail = rows(qkv, self.conv.weight[:, 0], tail, None, *self.parts, UNIT_EPSILON, True)
        queries, keys, values = made
        values = values.flatten(2).unflatten(2, (self.heads, self.value_dim))
        return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), tail

    def in_place(self, qkv: Tensor) -> bool:
        """Whether there is one token, and our kernel may write over the tail."""
        if self.conv is None or self.value_dim % self.key_dim or not is_given_up():
            return False
        return token.takes(qkv, self.key_dim, self.conv.width)

    def made_in_place(self, qkv: Tensor, tail: Tail) -> tuple[Tensor, Tensor, Tensor, Tail]:
        """`rows` by that kernel."""
        assert self.conv is not None
        assert isinstance(tail, Tensor)
        exact = arithmetic(qkv.dtype)
        made = token.run(qkv, self.conv.weight[:, 0], tail, None, *self.parts, UNIT_EPSILON, exact)
        queries, keys, values = made
        return queries, keys, values.view(len(qkv), self.heads, 1, self.value_dim), tail

    @property
    def parts(self) -> tuple[list[int], list[float]]:
        """Of queries, keys and values: heads as wide as a key, and lengths of their vectors, as kernels take them."""
        return [self.heads, self.heads, self.widths[2] // self.key_dim], [self.key_dim**-0.5, 1.0, 0.0]

    def log_keep(self, x: Tensor) -> Tensor | None:
        """What each token leaves of the memory [batch, heads, time]; None is all of it."""
        return None

    def said(self, reads: Tensor, x: Tensor) -> Tensor:
        """What goes to the output projection, [batch, time, heads × value_dim]."""
        return reads

    def initial_state(self, batch: int, capacity: int | None = None) -> DeltaState:
        tail = () if self.conv is None else self.conv.initial_tail(batch)
        memory = self.zeros(batch, self.heads, self.key_dim, self.value_dim)
        return DeltaState(tail, memory.to(arithmetic(memory.dtype)))

    def initialise(self) -> None:
        """The convolution as torch's own layers begin.

        fla draws it with a deviation of 0.02 instead; what is first read would then drown in the norm's epsilon.
        """
        if self.conv is not None:
            self.conv.initialise_as_torch()

    def cost(self, length: int) -> Cost:
        matrices = (module.weight for module in self.modules() if isinstance(module, nn.Linear))
        tail = 0 if self.conv is None else (self.conv.width - 1) * sum(self.widths) * self.like.element_size()
        memory = self.heads * self.key_dim * self.value_dim * arithmetic(self.like.dtype).itemsize
        return self.rule_cost(length) + Cost(
            forward_flops=sum(product_flops(*matrix.shape) for matrix in matrices), state_bytes=tail + memory
        )

    def rule_cost(self, length: int) -> Cost:
        return delta_rule_cost(self.heads, self.key_dim, self.value_dim, length, self.chunk, decay=False)


class GatedDeltaNet(DeltaNet):
    """The same with a memory that each token may decay, and an output gate."""

    def __init__(self, dim: int, heads: int, key_dim: int, value_dim: int, *, conv: int, chunk: int) -> None:
        super().__init__(dim, heads, key_dim, value_dim, conv=conv, chunk=chunk)
        self.steps = nn.Linear(dim, heads, bias=False)
        # Published as dt_bias, and added outside of the product because autocast would round it.
        self.first_step = nn.Parameter(torch.empty(heads))
        # Published as A_log.
        self.log_speed = nn.Parameter(torch.empty(heads))
        self.gate = nn.Linear(dim, heads * value_dim, bias=False)

    def log_keep(self, x: Tensor) -> Tensor:
        exact = arithmetic(x.dtype)
        steps = F.softplus(self.steps(x).to(exact) + self.first_step.to(exact))
        return (-self.log_speed.to(exact).exp() * steps).transpose(1, 2)

    def said(self, reads: Tensor, x: Tensor) -> Tensor:
        return reads * F.silu(self.gate(x))

    @torch.no_grad()
    def initialise(self) -> None:
        """Speeds and steps as published, so that some heads forget within a few tokens and others hardly ever."""
        super().initialise()
        # From 1 - rand, which is never zero.
        self.log_speed.copy_((FASTEST * (1 - torch.rand(self.heads))).log())
        draw_rate_bias(self.first_step)

    def rule_cost(self, length: int) -> Cost:
        return delta_rule_cost(self.heads, self.key_dim, self.value_dim, length, self.chunk, decay=True)
