"""What a standing memory of two matrices says to one query of each row, as decoding asks for it.

Where it stands for a segment, it is what was held when the segment began: its first token finds that in the memory
itself, and leaves it to the others. There the query is made here as well: one kernel less to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.memory.activations import activate
from lockstep.kernels.memory.retentions import measure_of, measured
from lockstep.kernels.memory.tiles import place, turned
from lockstep.kernels.memory.token_operator import CONSTANTS, KIND, LENT, warps
from lockstep.kernels.memory.token_step import lent, read_from, through_first, through_second
from lockstep.kernels.record import record
from lockstep.kernels.rows.single import convolved_before, put_tail, row_of, staying
from lockstep.kernels.rows.walking import scale_of
from lockstep.kernels.succession import IN_TURN, started
from lockstep.kernels.waiting import await_the_one_before

NAME = "recall token"


@triton.jit
def token_recall_kernel(
    queries: tl.tensor,  # [rows, WIDTH]; with a tail, what is projected of them
    weight: tl.tensor,  # [TAPS, heads × WIDTH], `weight_stride` apart, of a convolution; or nothing
    tail: tl.tensor,  # [batch, TAPS - 1, heads × WIDTH]: written over; or nothing
    first: tl.tensor,  # [rows, WIDTH, HIDDEN]
    second: tl.tensor,  # [rows, HIDDEN, WIDTH]
    held_1: tl.tensor,  # as these, which are written over by it where a segment begins; or nothing
    held_2: tl.tensor,
    position: tl.tensor,  # [batch], tokens seen
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    reads: tl.tensor,  # [rows, WIDTH]: what comes out
    heads: int,
    segment: int,
    weight_stride: int,
    TAPS: tl.constexpr,
    EPSILON: tl.constexpr,
    WIDTH: tl.constexpr,
    HIDDEN: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    ACTIVATION: tl.constexpr,
    RETENTION: tl.constexpr,
    Q: tl.constexpr,
    SIMPLEX: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """One program is one row."""
    index, head = tl.program_id(0), tl.program_id(0) % heads
    row = index.to(tl.int64)
    at_1 = row * WIDTH * HIDDEN + turned(HIDDEN, WIDTH, HIDDEN)
    at_2 = row * WIDTH * HIDDEN + place(WIDTH, HIDDEN, WIDTH)
    whole_1, whole_2 = tl.load(first + at_1), tl.load(second + at_2)
    wide = tl.arange(0, WIDTH)[None, :]
    g, s = lent(gain, head * WIDTH + wide, 1.0), lent(shift, head * WIDTH + wide, 0.0)
    begins = False
    if held_1 is not None:
        begins = tl.load(position + index // heads).to(tl.int32) % segment == 0
    if tail is not None:
        tail += (index // heads * (TAPS - 1) * heads + head).to(tl.int64) * WIDTH
        said, last = convolved_before(tail, weight + head * WIDTH, None, 0, heads * WIDTH, weight_stride, WIDTH, TAPS)
        left = staying(tail, heads * WIDTH, WIDTH, TAPS)
    await_the_one_before(OVERLAPS)
    x = tl.load(queries + row * WIDTH + wide)
    query = x.to(tl.float32)
    if tail is not None:
        query = row_of(x, said, last)
        query *= scale_of(query, EPSILON)
        tl.debug_barrier()  # all of the tail is read before any of it is written
        put_tail(tail, left, x, heads * WIDTH, WIDTH, TAPS)
    if held_1 is not None:
        if begins:
            whole_1, whole_2 = tl.load(held_1 + at_1), tl.load(held_2 + at_2)
            tl.store(first + at_1, whole_1)
            tl.store(second + at_2, whole_2)
    most_1, scale_1 = measure_of(whole_1, RETENTION, Q, SIMPLEX, 0)
    most_2, scale_2 = measure_of(whole_2, RETENTION, Q, SIMPLEX, 1)
    units = activate(through_first(query, measured(whole_1, most_1, scale_1, RETENTION)), ACTIVATION)
    answer = through_second(units, measured(whole_2, most_2, scale_2, RETENTION))
    tl.store(reads + row * WIDTH + wide, read_from(answer, query, g, s, NORM, RESIDUAL).to(reads.dtype.element_ty))


class Query(NamedTuple):
    """Of one token of each row, or what makes one."""

    given: Tensor  # [batch, heads, width]; with a tail, what is projected of it
    weight: Tensor | None = None  # [taps, heads × width]
    tail: Tensor | None = None  # [batch, taps - 1, heads × width]
    epsilon: float = 0.0


class Begun(NamedTuple):
    """Where a segment begins, what stands is written over."""

    held_1: Tensor | None = None  # by this: [batch, heads, in, out] each
    held_2: Tensor | None = None
    position: Tensor | None = None  # [batch], tokens seen
    segment: int = 1


def launch(query: Query, standing: Sequence[Tensor], begun: Begun, *behind: Any) -> Tensor:
    """Reads [batch, heads, width]; behind are gain and shift, and what kind of memory it is."""
    record(NAME)
    (batch, heads, width), hidden = query.given.shape, standing[0].shape[-1]
    reads = torch.empty_like(query.given)
    constants = dict(zip(CONSTANTS, behind[2:], strict=True))
    token_recall_kernel[(batch * heads,)](
        *query[:3],
        *standing,
        *begun[:3],
        *behind[:2],
        reads,
        heads,
        begun.segment,
        0 if query.weight is None else query.weight.stride(0),
        TAPS=0 if query.weight is None else len(query.weight),
        EPSILON=query.epsilon,
        WIDTH=width,
        HIDDEN=hidden,
        **constants,
        num_warps=warps(2 * width * hidden, constants["RETENTION"]),
        **(IN_TURN if begun.held_1 is None else started(reads)),  # else who knows when what is asked was written
    )
    return reads


@torch.library.custom_op(
    "lockstep::recall_token",
    mutates_args=(),
    schema=f"(Tensor queries, Tensor[] standing, {LENT}, {KIND}) -> Tensor",
)
def recall_token(queries: Tensor, standing: Sequence[Tensor], *behind: Any) -> Tensor:
    """Reads like the queries [batch, heads, width]; matrices are [batch, heads, in, out] in 32 bits, in one piece."""
    return launch(Query(queries), standing, Begun(), *behind)


@recall_token.register_fake
def _(queries: Tensor, *_: object) -> Tensor:
    return torch.empty_like(queries)


@torch.library.custom_op(
    "lockstep::recall_token_",
    mutates_args=("tail", "standing"),
    schema="(Tensor projected, Tensor weight, Tensor(a!) tail, float epsilon, Tensor(b!)[] standing, Tensor[] held,"
    f" Tensor position, int segment, {LENT}, {KIND}) -> Tensor",
)
def recall_token_(*arguments: Any) -> Tensor:
    """The same of projected queries, convolved after the tail, activated, of length one; the tail is then theirs.

    Where a segment begins, what stands is written over by what is held.
    """
    query, standing, (held, *when), behind = Query(*arguments[:4]), arguments[4], arguments[5:8], arguments[8:]
    if not all(x.is_contiguous() for x in (query.tail, *standing)):
        raise ValueError("a tail, or a memory that stands, must be in one piece where it is written over")
    return launch(query, standing, Begun(*held, *when), *behind)


@recall_token_.register_fake
def _(projected: Tensor, *_: object) -> Tensor:
    return torch.empty_like(projected)
