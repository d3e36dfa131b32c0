"""What a standing memory of two matrices says to queries, and the adjoints of that; nothing is written.

Queries are taken where they lie, [batch, heads, time, width] in whatever order, a piece of a longer text too; reads are
left as a model goes on with them, [batch, time, heads × width]. Descriptors know both, so that nothing is put in
another order. Between the two ways nothing is kept but the queries and the matrices as products take them. On the way
back all tiles go side by side to the queries, and leave the adjoints of what the second matrix said; then a program
walks the tiles of a row and adds up the adjoints of a block of hidden units.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lockstep.kernels.memory.activations import activate, activated_and_slope, slope_of
from lockstep.kernels.memory.heads import normalised, said, through_norm
from lockstep.kernels.memory.launches import BLOCK, sheet
from lockstep.kernels.memory.tiles import added, loaded, place, product, stored
from lockstep.kernels.record import record

NAME = "recall"
TILE = 64
"""Tokens that a program takes at a time, at most."""
SPAN = 8
"""Tiles of which one program adds up the adjoints of matrices, at most, so that few rows fill a device too."""


@triton.jit
def answered(
    query: tl.tensor,  # [TOKENS, WIDTH]
    matrices: tl.tensor_descriptor,  # [rows × 2 × WIDTH, HIDDEN]
    first: int,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """What both matrices say, the first of them at this row of the sheet."""
    answer = tl.zeros([query.shape[0], WIDTH], tl.float32)
    # Not `range`: ptxas of CUDA 12.8 to 13.0 forgets that in a loop a first operand is wanted again.
    for part in tl.static_range(SPLIT):
        unit = part * BLOCK
        x = activate(product(query, matrices.load([first, unit]), PRECISION), ACTIVATION).to(query.dtype)
        answer = added(answer, x, tl.trans(matrices.load([first + WIDTH, unit])), PRECISION)
    return answer


@triton.jit
def recall_kernel(
    queries: tl.tensor_descriptor,  # [batch, heads, time, WIDTH]
    matrices: tl.tensor_descriptor,  # [rows × 2 × WIDTH, HIDDEN]
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    reads: tl.tensor_descriptor,  # [batch, heads, time, WIDTH]: what comes out
    heads: int,
    tiles: int,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program is one tile of tokens of one row."""
    row, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    sample, head = row // heads, row % heads
    query = loaded(queries, sample, head, tile, TOKENS)
    answer = answered(query, matrices, row * 2 * WIDTH, WIDTH, BLOCK, SPLIT, ACTIVATION, PRECISION)
    wide = head * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gain + wide)[None, :] if NORM else 1.0
    s = tl.load(shift + wide)[None, :] if NORM else 0.0
    normal, _ = normalised(answer, NORM, 1)
    read = said(normal, query.to(tl.float32), g, s, NORM, RESIDUAL)
    stored(reads, read, sample, head, tile * TOKENS)


@triton.jit
def recall_backward_kernel(
    queries: tl.tensor_descriptor,  # [batch, heads, time, WIDTH]
    reads_bar: tl.tensor_descriptor,
    matrices: tl.tensor_descriptor,  # [rows × 2 × WIDTH, HIDDEN]
    gain: tl.tensor,  # [heads, WIDTH]
    answers_bar: tl.tensor_descriptor,  # [batch, heads, time, WIDTH]; what follows is what comes out
    queries_bar: tl.tensor_descriptor,
    gain_bar: tl.tensor,  # [rows, tiles, WIDTH]
    shift_bar: tl.tensor,
    heads: int,
    tiles: int,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program is one tile of tokens of one row: the adjoints of its answers and of its queries."""
    row, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    sample, head, first = row // heads, row % heads, row * 2 * WIDTH
    query = loaded(queries, sample, head, tile, TOKENS)
    bar = loaded(reads_bar, sample, head, tile, TOKENS).to(tl.float32)
    if NORM:
        answer = answered(query, matrices, first, WIDTH, BLOCK, SPLIT, ACTIVATION, PRECISION)
        normal, scale = normalised(answer, NORM, 1)
        wide = tl.arange(0, WIDTH)
        tl.store(gain_bar + tl.program_id(0) * WIDTH + wide, tl.sum(bar * normal, axis=0))
        tl.store(shift_bar + tl.program_id(0) * WIDTH + wide, tl.sum(bar, axis=0))
        bar = through_norm(bar * tl.load(gain + head * WIDTH + wide)[None, :], normal, scale, NORM, 1)
    answer_bar = bar.to(query.dtype)
    stored(answers_bar, answer_bar, sample, head, tile * TOKENS)
    query_bar = tl.zeros([TOKENS, WIDTH], tl.float32)
    for part in tl.static_range(SPLIT):
        unit = part * BLOCK
        held = matrices.load([first, unit])
        back = product(answer_bar, matrices.load([first + WIDTH, unit]), PRECISION)
        back *= slope_of(product(query, held, PRECISION), ACTIVATION)
        query_bar = added(query_bar, back.to(query.dtype), tl.trans(held), PRECISION)
    if RESIDUAL:
        query_bar += loaded(reads_bar, sample, head, tile, TOKENS)
    stored(queries_bar, query_bar, sample, head, tile * TOKENS)


@triton.jit
def recall_matrices_kernel(
    queries: tl.tensor_descriptor,  # [batch, heads, time, WIDTH]
    answers_bar: tl.tensor_descriptor,
    matrices: tl.tensor_descriptor,  # [rows × 2 × WIDTH, HIDDEN]
    matrices_bar: tl.tensor,  # [rows, groups, 2, WIDTH, HIDDEN] in 32 bits: what comes out
    heads: int,
    groups: int,
    span: int,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program is `span` tiles of one row and one block of hidden units. Both first operands come from memory."""
    group, unit = tl.program_id(0) // SPLIT, (tl.program_id(0) % SPLIT) * BLOCK
    row, start = group // groups, (group % groups) * span
    sample, head = row // heads, row % heads
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    held, held_2 = matrices.load([row * 2 * WIDTH, unit]), matrices.load([row * 2 * WIDTH + WIDTH, unit])
    first = tl.zeros([WIDTH, BLOCK], tl.float32)
    second = tl.zeros([WIDTH, BLOCK], tl.float32)
    for i in range(span):
        query = loaded(queries, sample, head, start + i, TOKENS)
        answer_bar = loaded(answers_bar, sample, head, start + i, TOKENS)
        x, slope = activated_and_slope(product(query, held, PRECISION), ACTIVATION)
        back = product(answer_bar, held_2, PRECISION) * slope
        first = added(first, tl.trans(query), back.to(query.dtype), PRECISION)
        second = added(second, tl.trans(answer_bar), x.to(query.dtype), PRECISION)
    matrices_bar += group.to(tl.int64) * 2 * WIDTH * HIDDEN + unit + place(HIDDEN, WIDTH, BLOCK)
    tl.store(matrices_bar, first)
    tl.store(matrices_bar + WIDTH * HIDDEN, second)


class Asked(NamedTuple):
    """One call."""

    queries: Tensor  # [batch, heads, time, width], `reachable`
    matrices: Tensor  # [rows, 2, width, hidden], the second turned, in the queries' precision
    gain: Tensor | None  # [heads, width]; without it there is no norm
    residual: bool
    activation: str

    @property
    def heads(self) -> int:
        return self.queries.shape[1]

    @property
    def tokens(self) -> int:
        """Of a tile: the time is a whole number of them."""
        return math.gcd(self.queries.shape[2], TILE)

    @property
    def tiles(self) -> int:
        """Of a row."""
        return self.queries.shape[2] // self.tokens

    @property
    def memory(self) -> dict[str, Any]:
        """Constants of every kernel."""
        width, hidden = self.matrices.shape[2:]
        block = min(hidden, BLOCK)
        sizes = {"TOKENS": self.tokens, "WIDTH": width, "BLOCK": block, "SPLIT": hidden // block, "num_warps": 4}
        # Three passes of the matrix units give 32-bit operands nearly all of their 32 bits.
        exact = self.queries.dtype == torch.float32
        return sizes | {"ACTIVATION": self.activation, "PRECISION": "tf32x3" if exact else "tf32"}

    @property
    def constants(self) -> dict[str, Any]:
        """Of those that know what follows the last matrix."""
        return self.memory | {"NORM": self.gain is not None, "RESIDUAL": self.residual, "num_stages": 1}

    def sheets(self, *tensors: Tensor) -> list[TensorDescriptor]:
        """[batch, heads, time, width], some tokens of a head a tile."""
        shape = [1, 1, self.tokens, self.matrices.shape[2]]
        return [TensorDescriptor.from_tensor(x, shape) for x in tensors]

    def matrix_sheet(self) -> TensorDescriptor:
        return sheet(self.matrices, self.matrices.shape[2], min(self.matrices.shape[3], BLOCK))


def reachable(x: Tensor) -> Tensor:
    """As descriptors reach it: columns side by side, all else in steps of 16 bytes. Pieces of a text are, as it is."""
    steps = [x.data_ptr(), *(stride * x.element_size() for stride in x.stride()[:-1])]
    if x.stride(-1) == 1 and all(step > 0 and step % 16 == 0 for step in steps):
        return x
    return x.clone(memory_format=torch.contiguous_format)


def heads_apart(tokens: Tensor, heads: int) -> Tensor:
    """Tokens [batch, time, heads × width], where they lie, as [batch, heads, time, width]."""
    apart: Tensor = tokens.unflatten(2, (heads, -1)).transpose(1, 2)
    return apart


def as_operands(first: Tensor, second: Tensor, dtype: torch.dtype) -> Tensor:
    """Matrices [rows, width, hidden] and [rows, hidden, width], of any strides, as [rows, 2, width, hidden]."""
    operands = first.new_empty(first.shape[0], 2, *first.shape[1:], dtype=dtype)
    operands[:, 0].copy_(first)
    operands[:, 1].copy_(second.mT)
    return operands


def forward(asked: Asked, shift: Tensor | None) -> Tensor:
    """Reads, [batch, time, heads × width]."""
    batch, heads, time, width = asked.queries.shape
    reads = asked.queries.new_empty(batch, time, heads * width)
    recall_kernel[(asked.matrices.shape[0] * asked.tiles,)](
        *asked.sheets(asked.queries),
        asked.matrix_sheet(),
        asked.gain,
        shift,
        *asked.sheets(heads_apart(reads, heads)),
        heads,
        asked.tiles,
        **asked.constants,
    )
    return reads


def backward(asked: Asked, reads_bar: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Adjoints of queries, in one piece, of matrices in 32 bits, and of gain and shift, [2, heads, width]."""
    rows, _, width, _ = asked.matrices.shape
    queries_bar, answers_bar = (asked.queries.new_empty(asked.queries.shape) for _ in range(2))
    samples = 0 if asked.gain is None else rows // asked.heads
    lent_bar = asked.matrices.new_empty(2, samples, asked.heads, asked.tiles, width, dtype=torch.float32)
    recall_backward_kernel[(rows * asked.tiles,)](
        *asked.sheets(asked.queries, heads_apart(reads_bar, asked.heads)),
        asked.matrix_sheet(),
        asked.gain,
        *asked.sheets(answers_bar, queries_bar),
        *lent_bar,
        asked.heads,
        asked.tiles,
        **asked.constants,
    )
    return queries_bar, through_matrices(asked, answers_bar), lent_bar.sum((1, 3))


def through_matrices(asked: Asked, answers_bar: Tensor) -> Tensor:
    """The adjoints of both, [rows, 2, width, hidden]."""
    rows, constants, span = asked.matrices.shape[0], asked.memory, math.gcd(asked.tiles, SPAN)
    groups = asked.tiles // span
    sums = asked.matrices.new_empty(rows, groups, *asked.matrices.shape[1:], dtype=torch.float32)
    recall_matrices_kernel[(rows * groups * constants["SPLIT"],)](
        *asked.sheets(asked.queries, answers_bar),
        asked.matrix_sheet(),
        sums,
        asked.heads,
        groups,
        span,
        **constants,
        num_stages=2,
    )
    return sums[:, 0] if groups == 1 else sums.sum(1)


SETTING = "bool residual, str activation"


@torch.library.custom_op(
    "lockstep::recall",
    mutates_args=(),
    schema=f"(Tensor queries, Tensor first, Tensor second, Tensor? gain, Tensor? shift, {SETTING})"
    " -> (Tensor reads, Tensor matrices)",
)
def recall(
    queries: Tensor, first: Tensor, second: Tensor, gain: Tensor | None, shift: Tensor | None, *setting: Any
) -> tuple[Tensor, Tensor]:
    """Of queries [batch, heads, time, width] the reads [batch, time, heads × width], and what the way back needs.

    The matrices are as `as_operands` takes them.
    """
    record(NAME)
    matrices = as_operands(first, second, queries.dtype)
    return forward(Asked(reachable(queries), matrices, gain, *setting), shift), matrices


@recall.register_fake
def _(queries: Tensor, first: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    batch, heads, time, width = queries.shape
    return queries.new_empty(batch, time, heads * width), queries.new_empty(first.shape[0], 2, *first.shape[1:])


@torch.library.custom_op(
    "lockstep::recall_backward",
    mutates_args=(),
    schema=f"(Tensor queries, Tensor matrices, Tensor? gain, Tensor reads_bar, {SETTING}) -> (Tensor, Tensor, Tensor)",
)
def recall_backward(
    queries: Tensor, matrices: Tensor, gain: Tensor | None, reads_bar: Tensor, *setting: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """As `backward`; without a norm the last are zero."""
    return backward(Asked(reachable(queries), matrices, gain, *setting), reachable(reads_bar))


@recall_backward.register_fake
def _(queries: Tensor, matrices: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    lent_bar = matrices.new_empty(2, queries.shape[1], matrices.shape[2], dtype=torch.float32)
    return queries.new_empty(queries.shape), torch.empty_like(matrices, dtype=torch.float32), lent_bar


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    queries, _, _, gain, _, *ctx.setting = inputs
    ctx.save_for_backward(queries, output[1], gain)
    ctx.mark_non_differentiable(output[1])


def _through(ctx: Any, reads_bar: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    queries, matrices, gain = ctx.saved_tensors
    queries_bar, matrices_bar, lent_bar = recall_backward(queries, matrices, gain, reads_bar, *ctx.setting)
    first_bar, second_bar = matrices_bar.unbind(1)
    gain_bar, shift_bar = (None, None) if gain is None else lent_bar.unbind()
    return queries_bar, first_bar, second_bar.mT, gain_bar, shift_bar, *[None] * len(ctx.setting)


recall.register_autograd(_through, setup_context=_keep)
