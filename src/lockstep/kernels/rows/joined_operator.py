"""What attention and a memory say, joined by a gate: one differentiable operator, one kernel a piece, there and back.

    y = (w₁·a/√(mean a² + ε) + b₁) · silu(w₂·m/√(mean m² + ε) + b₂), where a and m are those of one head of a token

A text may come in pieces, as segments leave it, and goes out whole. Reads are taken where a memory leaves them, and so
are their adjoints: nothing is put in another order. All is computed in 32 bits, and the way back starts from what came
in, nothing else being kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.memory.activations import activate, activated_and_slope
from lockstep.kernels.record import record
from lockstep.kernels.succession import started
from lockstep.kernels.waiting import await_the_one_before

NAME = "joined"
TOKENS = 64
"""Of a program, which has one head of them, at most."""


@triton.jit
def spots(
    sample_stride: int,
    token_stride: int,
    head_stride: int,
    heads: int,
    time: int,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Where a program's numbers [TOKENS, WIDTH] lie, and which there are."""
    head, tile, sample = tl.program_id(0) % heads, tl.program_id(0) // heads, tl.program_id(1).to(tl.int64)
    token = tile * TOKENS + tl.arange(0, TOKENS)
    first = sample * sample_stride + head.to(tl.int64) * head_stride
    where = first + token.to(tl.int64)[:, None] * token_stride + tl.arange(0, WIDTH)[None, :]
    return where, (token < time)[:, None]


@triton.jit
def taken(numbers: tl.tensor, where: tl.tensor, there: tl.tensor) -> tl.tensor:
    return tl.load(numbers + where, mask=there, other=0.0).to(tl.float32)


@triton.jit
def put(numbers: tl.tensor, where: tl.tensor, x: tl.tensor, there: tl.tensor) -> None:
    tl.store(numbers + where, x.to(numbers.dtype.element_ty), mask=there)


@triton.jit
def learned(parameters: tl.tensor, heads: int, WIDTH: tl.constexpr) -> tl.tensor:
    """Of the program's head, [1, WIDTH]."""
    channel = (tl.program_id(0) % heads) * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.load(parameters + channel).to(tl.float32)


@triton.jit
def normal(x: tl.tensor, WIDTH: tl.constexpr, EPSILON: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Rows of a mean square of one, and what makes them so, [TOKENS, 1]."""
    scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) * (1.0 / WIDTH) + EPSILON)
    return x * scale, scale


@triton.jit
def through_normal(bar: tl.tensor, rows: tl.tensor, scale: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """The adjoint of rows before they were made normal, from that of the normal ones."""
    return scale * (bar - rows * (tl.sum(bar * rows, axis=1, keep_dims=True) * (1.0 / WIDTH)))


@triton.jit
def joined_kernel(
    attended: tl.tensor,  # [batch, time, heads × WIDTH]
    reads: tl.tensor,  # [batch, time, heads, WIDTH], so far apart
    weight: tl.tensor,  # [heads × WIDTH], and so on: of what attention says,
    bias: tl.tensor,
    read_weight: tl.tensor,  # and of what is read
    read_bias: tl.tensor,
    y: tl.tensor,  # as `attended`, samples `whole` tokens apart: what comes out
    heads: int,
    time: int,
    whole: int,
    sample_stride: int,
    token_stride: int,
    head_stride: int,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    EPSILON: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    dim = heads * WIDTH
    here, there = spots(time * dim, dim, WIDTH, heads, time, TOKENS, WIDTH)
    apart, _ = spots(sample_stride, token_stride, head_stride, heads, time, TOKENS, WIDTH)
    w, b = learned(weight, heads, WIDTH), learned(bias, heads, WIDTH)
    read_w, read_b = learned(read_weight, heads, WIDTH), learned(read_bias, heads, WIDTH)
    await_the_one_before(OVERLAPS)
    a, _ = normal(taken(attended, here, there), WIDTH, EPSILON)
    m, _ = normal(taken(reads, apart, there), WIDTH, EPSILON)
    left, right = a * w + b, activate(m * read_w + read_b, "silu")
    out, _ = spots(whole * dim, dim, WIDTH, heads, time, TOKENS, WIDTH)
    put(y, out, left * right, there)


@triton.jit
def joined_backward_kernel(
    attended: tl.tensor,  # [batch, time, heads × WIDTH]
    reads: tl.tensor,  # [batch, time, heads, WIDTH], so far apart
    weight: tl.tensor,  # [heads × WIDTH], and so on
    bias: tl.tensor,
    read_weight: tl.tensor,
    read_bias: tl.tensor,
    y_bar: tl.tensor,  # as `attended`, samples `whole` tokens apart
    attended_bar: tl.tensor,  # as `attended`: what comes out, and so on
    reads_bar: tl.tensor,  # as the reads
    sums: tl.tensor,  # [batch, tiles, 4, heads × WIDTH] in 32 bits: of weights and biases, by these tokens
    heads: int,
    time: int,
    whole: int,
    sample_stride: int,
    token_stride: int,
    head_stride: int,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    EPSILON: tl.constexpr,
) -> None:
    """The same programs."""
    dim = heads * WIDTH
    here, there = spots(time * dim, dim, WIDTH, heads, time, TOKENS, WIDTH)
    apart, _ = spots(sample_stride, token_stride, head_stride, heads, time, TOKENS, WIDTH)
    out, _ = spots(whole * dim, dim, WIDTH, heads, time, TOKENS, WIDTH)
    a, a_scale = normal(taken(attended, here, there), WIDTH, EPSILON)
    m, m_scale = normal(taken(reads, apart, there), WIDTH, EPSILON)
    bar = taken(y_bar, out, there)
    w, read_w = learned(weight, heads, WIDTH), learned(read_weight, heads, WIDTH)
    right, slope = activated_and_slope(m * read_w + learned(read_bias, heads, WIDTH), "silu")
    z_bar = bar * (a * w + learned(bias, heads, WIDTH)) * slope
    bar *= right
    put(attended_bar, here, through_normal(bar * w, a, a_scale, WIDTH), there)
    put(reads_bar, apart, through_normal(z_bar * read_w, m, m_scale, WIDTH), there)
    tile = tl.program_id(1) * (tl.num_programs(0) // heads) + tl.program_id(0) // heads
    sums += tile.to(tl.int64) * 4 * dim + (tl.program_id(0) % heads) * WIDTH + tl.arange(0, WIDTH)
    tl.store(sums, tl.sum(bar * a, axis=0))
    tl.store(sums + dim, tl.sum(bar, axis=0))
    tl.store(sums + 2 * dim, tl.sum(z_bar * m, axis=0))
    tl.store(sums + 3 * dim, tl.sum(z_bar, axis=0))


class Piece(NamedTuple):
    """One launch: some tokens of a text that has `whole` of them."""

    attended: Tensor  # [batch, time, dim], in one piece
    reads: Tensor  # [batch, time, heads, width], `in_order`
    whole: int
    epsilon: float

    @property
    def tokens(self) -> int:
        """Of a program: single ones have little work."""
        return 1 if self.reads.shape[1] == 1 else TOKENS

    @property
    def tiles(self) -> int:
        return -(-self.reads.shape[1] // self.tokens)

    @property
    def grid(self) -> tuple[int, int]:
        return self.tiles * self.reads.shape[2], len(self.reads)

    @property
    def settings(self) -> tuple[int, ...]:
        _, time, heads, _ = self.reads.shape
        return heads, time, self.whole, *self.reads.stride()[:-1]

    @property
    def constants(self) -> dict[str, Any]:
        sizes = {"TOKENS": self.tokens, "WIDTH": self.reads.shape[-1], "EPSILON": self.epsilon}
        return sizes | {"num_warps": 4 if self.tokens > 1 else 1}


def pieces(attended: Sequence[Tensor], reads: Sequence[Tensor], epsilon: float) -> list[Piece]:
    whole = sum(x.shape[1] for x in attended)
    return [Piece(x.contiguous(), in_order(y), whole, epsilon) for x, y in zip(attended, reads, strict=True)]


def in_order(reads: Tensor) -> Tensor:
    """Token by token or, as memories leave them, head by head: adjoints lie likewise."""
    return reads if reads.transpose(1, 2).is_contiguous() else reads.contiguous()


def parts_of(text: Tensor, given: Sequence[Piece]) -> tuple[Tensor, ...]:
    """Each piece's own of a text [batch, whole, dim]."""
    parts: tuple[Tensor, ...] = text.split([piece.reads.shape[1] for piece in given], dim=1)
    return parts


def room(attended: Sequence[Tensor], reads: Sequence[Tensor]) -> Tensor:
    """For the text."""
    batch, _, dim = attended[0].shape
    return reads[0].new_empty(batch, sum(x.shape[1] for x in attended), dim)


Bars = tuple[list[Tensor], list[Tensor], Tensor]
"""Adjoints of what each piece had, and of what is learned, [4, dim] in 32 bits."""


def forward(given: Sequence[Piece], learned: Sequence[Tensor], text: Tensor) -> None:
    """Into the text."""
    for piece, y in zip(given, parts_of(text, given), strict=True):
        how = piece.constants | started(y)
        joined_kernel[piece.grid](*piece[:2], *learned, y, *piece.settings, **how)


def backward(given: Sequence[Piece], learned: Sequence[Tensor], y_bar: Tensor) -> Bars:
    attended_bar = [torch.empty_like(piece.attended) for piece in given]
    reads_bar = [torch.empty_like(piece.reads) for piece in given]
    counts = [len(piece.reads) * piece.tiles for piece in given]
    sums = y_bar.new_empty(sum(counts), 4, y_bar.shape[-1], dtype=torch.float32)
    made = zip(attended_bar, reads_bar, sums.split(counts), strict=True)
    for piece, bar, bars in zip(given, parts_of(y_bar, given), made, strict=True):
        joined_backward_kernel[piece.grid](*piece[:2], *learned, bar, *bars, *piece.settings, **piece.constants)
    return attended_bar, reads_bar, sums.sum(0)


GIVEN = "Tensor[] attended, Tensor[] reads"
LEARNED = "Tensor weight, Tensor bias, Tensor read_weight, Tensor read_bias"


@torch.library.custom_op("lockstep::joined", mutates_args=(), schema=f"({GIVEN}, {LEARNED}, float epsilon) -> Tensor")
def joined(attended: Sequence[Tensor], reads: Sequence[Tensor], *others: Any) -> Tensor:
    """As `forward`: y [batch, time of all pieces, dim], in what reads come in."""
    record(NAME)
    *learned, epsilon = others
    text = room(attended, reads)
    forward(pieces(attended, reads, epsilon), [x.contiguous() for x in learned], text)
    return text


@joined.register_fake
def _(attended: Sequence[Tensor], reads: Sequence[Tensor], *_: Any) -> Tensor:
    return room(attended, reads)


@torch.library.custom_op(
    "lockstep::joined_backward",
    mutates_args=(),
    schema=f"({GIVEN}, {LEARNED}, Tensor y_bar, float epsilon) -> (Tensor[], Tensor[], Tensor)",
)
def joined_backward(attended: Sequence[Tensor], reads: Sequence[Tensor], *others: Any) -> Bars:
    """As `backward`."""
    *learned, y_bar, epsilon = others
    return backward(pieces(attended, reads, epsilon), [x.contiguous() for x in learned], y_bar.contiguous())


@joined_backward.register_fake
def _(attended: Sequence[Tensor], reads: Sequence[Tensor], *others: Any) -> Bars:
    y_bar = others[-2]
    sums = y_bar.new_empty(4, y_bar.shape[-1], dtype=torch.float32)
    given = pieces(attended, reads, others[-1])
    return [torch.empty_like(x.attended) for x in given], [torch.empty_like(x.reads) for x in given], sums


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    attended, reads, *learned, epsilon = inputs
    ctx.save_for_backward(*attended, *reads, *learned)
    ctx.count, ctx.epsilon = len(attended), epsilon


def _through(ctx: Any, y_bar: Tensor) -> tuple[Any, ...]:
    given, count = ctx.saved_tensors, ctx.count
    attended, reads, learned = given[:count], given[count : 2 * count], given[2 * count :]
    attended_bar, reads_bar, sums = joined_backward(list(attended), list(reads), *learned, y_bar, ctx.epsilon)
    learned_bar = (bar.to(x.dtype) for bar, x in zip(sums.unbind(), learned, strict=True))
    return attended_bar, reads_bar, *learned_bar, None


joined.register_autograd(_through, setup_context=_keep)
