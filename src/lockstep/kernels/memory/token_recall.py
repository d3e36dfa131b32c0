"""What a standing memory of two matrices says to one query of each row, as decoding asks for it.

Where it stands for a segment, it is what was held when the segment began: its first token finds that in the memory
itself, and leaves it to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.memory.activations import activate
from lockstep.kernels.memory.retentions import measure_of, measured
from lockstep.kernels.memory.tiles import place, turned
from lockstep.kernels.memory.token_operator import ASKED
from lockstep.kernels.memory.token_step import lent, read_from, through_first, through_second
from lockstep.kernels.record import record
from lockstep.kernels.succession import await_the_one_before, started

NAME = "recall token"
LENT = "Tensor? gain, Tensor? shift"
KIND = "bool residual, bool norm, str activation, str retention, float q, float simplex"


@triton.jit
def token_recall_kernel(
    queries: tl.tensor,  # [rows, WIDTH]
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
        begins = tl.load(position + index // heads) % segment == 0
    await_the_one_before(OVERLAPS)
    query = tl.load(queries + row * WIDTH + wide).to(tl.float32)
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


def launch(
    queries: Tensor, held: Sequence[Tensor], latest: Sequence[Tensor | None], position: Tensor | None, *behind: Any
) -> Tensor:
    """Reads; `behind` are the segment's length, gain, shift and what is asked of the memory's kind."""
    record(NAME)
    segment, gain, shift, *asked = behind
    (batch, heads, width), hidden = queries.shape, held[0].shape[-1]
    reads = torch.empty_like(queries)
    token_recall_kernel[(batch * heads,)](
        queries,
        *held,
        *latest,
        position,
        gain,
        shift,
        reads,
        heads,
        segment,
        WIDTH=width,
        HIDDEN=hidden,
        **dict(zip(ASKED, asked, strict=True)),
        num_warps=8,
        **started(queries),
    )
    return reads


@torch.library.custom_op(
    "lockstep::recall_token",
    mutates_args=(),
    schema=f"(Tensor queries, Tensor[] held, {LENT}, {KIND}) -> Tensor",
)
def recall_token(queries: Tensor, held: Sequence[Tensor], *behind: Any) -> Tensor:
    """Reads like the queries [batch, heads, width]; matrices are [batch, heads, in, out] in 32 bits, in one piece."""
    return launch(queries, held, (None, None), None, 1, *behind)


@recall_token.register_fake
def _(queries: Tensor, *_: object) -> Tensor:
    return torch.empty_like(queries)


@torch.library.custom_op(
    "lockstep::recall_token_",
    mutates_args=("standing",),
    schema="(Tensor queries, Tensor(a!)[] standing, Tensor[] held, Tensor position, int segment,"
    f" {LENT}, {KIND}) -> Tensor",
)
def recall_token_(
    queries: Tensor, standing: Sequence[Tensor], held: Sequence[Tensor], position: Tensor, segment: int, *behind: Any
) -> Tensor:
    """The same, of what stands for a segment; where a segment begins, it is first written over by what is held."""
    if not all(matrix.is_contiguous() for matrix in standing):
        raise ValueError("a standing memory that is written over must be in one piece, each matrix of it")
    return launch(queries, standing, held, position, segment, *behind)


@recall_token_.register_fake
def _(queries: Tensor, *_: object) -> Tensor:
    return torch.empty_like(queries)
