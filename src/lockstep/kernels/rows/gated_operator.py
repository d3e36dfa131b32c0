"""What Mamba-2 reads, with a share of its values, gated and normalised: one differentiable operator, two kernels.

    said = reads + skip·values        u = said·silu(gate)        y = gain·u / √(mean of u² over the group + ε)

A program walks over tokens of one group, while the next are on their way: what is to be moved takes longer than what is
to be computed. That is done in 32 bits, whatever comes in; and the way back starts from what came in, nothing else
being kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.memory.activations import activate, activated_and_slope
from lockstep.kernels.record import record
from lockstep.kernels.succession import started
from lockstep.kernels.waiting import await_the_one_before

NAME = "gated"
SPAN = 32
"""Tokens of a program, at most: what it adds up for skip and gain is little beside what it goes through."""
STAGES = 3
"""Of a walk: while a token is worked on, two more are on their way."""
NUMBERS = 8
"""Of a token, in a thread: 16 bytes are loaded at once."""
MOST_WARPS = 16


@triton.jit
def walk(
    count: int, INNER: tl.constexpr, SIZE: tl.constexpr, SPAN: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """A program's first channel, where that of its first token lies, and how many tokens it has."""
    first, column = tl.program_id(0) * SPAN, tl.program_id(1) * SIZE
    return column, first.to(tl.int64) * INNER + column, tl.minimum(count - first, SPAN)


@triton.jit
def taken(numbers: tl.tensor, at: tl.tensor, SIZE: tl.constexpr, WIDTH: tl.constexpr) -> tl.tensor:
    """SIZE numbers from there on, in 32 bits, and zeros up to WIDTH."""
    within = tl.arange(0, WIDTH)
    return tl.load(numbers + at + within, mask=within < SIZE, other=0.0).to(tl.float32)


@triton.jit
def put(numbers: tl.tensor, at: tl.tensor, x: tl.tensor, SIZE: tl.constexpr) -> None:
    """The same way back, rounded to what is there."""
    within = tl.arange(0, x.shape[0])
    tl.store(numbers + at + within, x.to(numbers.dtype.element_ty), mask=within < SIZE)


@triton.jit
def shares(
    skip: tl.tensor, column: tl.tensor, SIZE: tl.constexpr, WIDTH: tl.constexpr, EACH: tl.constexpr
) -> tl.tensor:
    """Of the values of channels from there on, of which EACH in a row have one share."""
    within = tl.arange(0, WIDTH)
    return tl.load(skip + (column + within) // EACH, mask=within < SIZE, other=0.0).to(tl.float32)


@triton.jit
def mean(x: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    return tl.sum(x, axis=0) * (1.0 / SIZE)


@triton.jit
def gated_kernel(
    reads: tl.tensor,  # [count, INNER], and so on
    values: tl.tensor,
    gate: tl.tensor,
    skip: tl.tensor,  # [INNER / EACH]
    gain: tl.tensor,  # [INNER]
    y: tl.tensor,  # as the reads: what comes out
    count: int,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    EPSILON: tl.constexpr,
    EACH: tl.constexpr,
    SPAN: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """One program is SPAN tokens of one group, which has SIZE numbers of each."""
    column, start, length = walk(count, INNER, SIZE, SPAN)
    share, scale = shares(skip, column, SIZE, WIDTH, EACH), taken(gain, column, SIZE, WIDTH)
    await_the_one_before(OVERLAPS)
    for token in tl.range(length, num_stages=STAGES):
        at = start + token * INNER
        said = taken(reads, at, SIZE, WIDTH) + share * taken(values, at, SIZE, WIDTH)
        u = said * activate(taken(gate, at, SIZE, WIDTH), "silu")
        put(y, at, scale * u * tl.rsqrt(mean(u * u, SIZE) + EPSILON), SIZE)


@triton.jit
def gated_backward_kernel(
    reads: tl.tensor,  # [count, INNER], and so on
    values: tl.tensor,
    gate: tl.tensor,
    skip: tl.tensor,  # [INNER / EACH]
    gain: tl.tensor,  # [INNER]
    y_bar: tl.tensor,  # as the reads
    reads_bar: tl.tensor,  # likewise: what comes out
    gate_bar: tl.tensor,
    sums: tl.tensor,  # [programs, 2, INNER] in 32 bits: adjoints of skip and gain by these tokens
    count: int,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    EPSILON: tl.constexpr,
    EACH: tl.constexpr,
    SPAN: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """The same programs."""
    column, start, length = walk(count, INNER, SIZE, SPAN)
    share, scale = shares(skip, column, SIZE, WIDTH, EACH), taken(gain, column, SIZE, WIDTH)
    skip_bar, gain_bar = tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32)
    for token in tl.range(length, num_stages=STAGES):
        at = start + token * INNER
        x, bar = taken(values, at, SIZE, WIDTH), taken(y_bar, at, SIZE, WIDTH)
        said = taken(reads, at, SIZE, WIDTH) + share * x
        opening, slope = activated_and_slope(taken(gate, at, SIZE, WIDTH), "silu")
        u = said * opening
        inverse = tl.rsqrt(mean(u * u, SIZE) + EPSILON)
        gain_bar += bar * (u * inverse)
        bar *= scale
        u_bar = inverse * (bar - u * (inverse * inverse * mean(bar * u, SIZE)))
        said_bar = u_bar * opening
        skip_bar += said_bar * x
        put(reads_bar, at, said_bar, SIZE)
        put(gate_bar, at, u_bar * said * slope, SIZE)
    sums += tl.program_id(0).to(tl.int64) * 2 * INNER
    put(sums, column, skip_bar, SIZE)
    put(sums + INNER, column, gain_bar, SIZE)


class Gated(NamedTuple):
    """One call; everything in one piece."""

    reads: Tensor  # [batch, time, inner], and so on
    values: Tensor
    gate: Tensor
    skip: Tensor  # [heads], each of as many channels as the others
    gain: Tensor  # [inner]
    groups: int
    epsilon: float

    @property
    def tokens(self) -> int:
        batch, time, _ = self.gate.shape
        return batch * time

    @property
    def grid(self) -> tuple[int, int]:
        """One program at least: a launch of none is an error, and sums over nothing are zeros."""
        return max(-(-self.tokens // SPAN), 1), self.groups

    @property
    def constants(self) -> dict[str, Any]:
        inner = len(self.gain)
        size = inner // self.groups
        width = triton.next_power_of_2(size)
        sizes = {"INNER": inner, "SIZE": size, "WIDTH": width, "EPSILON": self.epsilon, "EACH": inner // len(self.skip)}
        warps = min(max(width // (32 * NUMBERS), 1), MOST_WARPS)
        return sizes | {"SPAN": SPAN, "STAGES": STAGES, "num_warps": warps}


def forward(given: Gated) -> Tensor:
    y = torch.empty_like(given.gate)
    gated_kernel[given.grid](*given[:COUNT], y, given.tokens, **given.constants, **started(y))
    return y


def backward(given: Gated, y_bar: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Adjoints of reads and gate, and of each channel's skip and gain, [2, inner] in 32 bits."""
    reads_bar, gate_bar = torch.empty_like(given.reads), torch.empty_like(given.gate)
    sums = given.gain.new_empty(given.grid[0], 2, len(given.gain), dtype=torch.float32)
    made = reads_bar, gate_bar, sums
    gated_backward_kernel[given.grid](*given[:COUNT], y_bar.contiguous(), *made, given.tokens, **given.constants)
    return reads_bar, gate_bar, sums.sum(0)


Pieces = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def in_pieces(reads: Tensor, values: Tensor, gate: Tensor, skip: Tensor, gain: Tensor) -> Pieces:
    """As kernels take them."""
    return reads.contiguous(), values.contiguous(), gate.contiguous(), skip.contiguous(), gain.contiguous()


GIVEN = "Tensor reads, Tensor values, Tensor gate, Tensor skip, Tensor gain"
COUNT = 5
SETTING = "int groups, float epsilon"


@torch.library.custom_op("lockstep::gated", mutates_args=(), schema=f"({GIVEN}, {SETTING}) -> Tensor")
def gated(*arguments: Any) -> Tensor:
    """As `forward`: y [batch, time, inner], in what the gate comes in."""
    record(NAME)
    return forward(Gated(*in_pieces(*arguments[:COUNT]), *arguments[COUNT:]))


@gated.register_fake
def _(reads: Tensor, values: Tensor, gate: Tensor, *_: Any) -> Tensor:
    return gate.new_empty(gate.shape)


@torch.library.custom_op(
    "lockstep::gated_backward",
    mutates_args=(),
    schema=f"({GIVEN}, Tensor y_bar, {SETTING}) -> (Tensor, Tensor, Tensor)",
)
def gated_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """As `backward`."""
    given = Gated(*in_pieces(*arguments[:COUNT]), *arguments[COUNT + 1 :])
    return backward(given, arguments[COUNT])


@gated_backward.register_fake
def _(
    reads: Tensor, values: Tensor, gate: Tensor, skip: Tensor, gain: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    sums = gain.new_empty(2, len(gain), dtype=torch.float32)
    return reads.new_empty(reads.shape), gate.new_empty(gate.shape), sums


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:COUNT])
    ctx.setting = inputs[COUNT:]


def _through(ctx: Any, y_bar: Tensor) -> tuple[Any, ...]:
    """Values' adjoint is left to torch: a compiler makes it where it is added to the one that they get elsewhere."""
    given = ctx.saved_tensors
    reads_bar, gate_bar, sums = gated_backward(*given, y_bar, *ctx.setting)
    _, values, _, skip, gain = given
    by_heads = (len(skip), -1)
    values_bar = (reads_bar.unflatten(-1, by_heads) * skip[:, None]).flatten(-2).to(values.dtype)
    skip_bar = sums[0].unflatten(0, by_heads).sum(-1).to(skip.dtype)
    return reads_bar, values_bar, gate_bar, skip_bar, sums[1].to(gain.dtype), *[None] * len(ctx.setting)


gated.register_autograd(_through, setup_context=_keep)
