"""What a standing memory of two matrices says to one query of each row, as decoding asks for it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.memory.activations import activate
from lockstep.kernels.memory.tiles import place, turned
from lockstep.kernels.memory.token_step import lent, read_from, through_first, through_second
from lockstep.kernels.record import record
from lockstep.kernels.succession import await_the_one_before, started

NAME = "recall token"


@triton.jit
def token_recall_kernel(
    queries: tl.tensor,  # [rows, WIDTH]
    first: tl.tensor,  # [rows, WIDTH, HIDDEN]
    second: tl.tensor,  # [rows, HIDDEN, WIDTH]
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    reads: tl.tensor,  # [rows, WIDTH]: what comes out
    heads: int,
    WIDTH: tl.constexpr,
    HIDDEN: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """One program is one row."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(0) % heads
    whole_1 = tl.load(first + row * WIDTH * HIDDEN + turned(HIDDEN, WIDTH, HIDDEN))
    whole_2 = tl.load(second + row * WIDTH * HIDDEN + place(WIDTH, HIDDEN, WIDTH))
    wide = tl.arange(0, WIDTH)[None, :]
    g, s = lent(gain, head * WIDTH + wide, 1.0), lent(shift, head * WIDTH + wide, 0.0)
    await_the_one_before(OVERLAPS)
    query = tl.load(queries + row * WIDTH + wide).to(tl.float32)
    answer = through_second(activate(through_first(query, whole_1), ACTIVATION), whole_2)
    tl.store(reads + row * WIDTH + wide, read_from(answer, query, g, s, NORM, RESIDUAL).to(reads.dtype.element_ty))


@torch.library.custom_op("lockstep::recall_token", mutates_args=())
def recall_token(
    queries: Tensor,
    first: Tensor,
    second: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    norm: bool,
    residual: bool,
    activation: str,
) -> Tensor:
    """Reads like the queries [batch, heads, width]; matrices are [batch, heads, in, out] in 32 bits, in one piece."""
    record(NAME)
    (batch, heads, width), hidden = queries.shape, first.shape[-1]
    reads = torch.empty_like(queries)
    kind = {"NORM": norm, "RESIDUAL": residual, "ACTIVATION": activation}
    token_recall_kernel[(batch * heads,)](
        queries,
        first,
        second,
        gain,
        shift,
        reads,
        heads,
        WIDTH=width,
        HIDDEN=hidden,
        **kind,
        num_warps=8,
        **started(queries),
    )
    return reads


@recall_token.register_fake
def _(queries: Tensor, *_: object) -> Tensor:
    return torch.empty_like(queries)
