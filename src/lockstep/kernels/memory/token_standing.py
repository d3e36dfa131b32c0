"""The memory that stands for a segment, replaced where its last token has been written, as decoding asks for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.memory.token_step import copied_if
from lockstep.kernels.record import record
from lockstep.kernels.succession import await_the_one_before, started

NAME = "standing"
BLOCK = 4096
"""Numbers of a program, of each of two matrices."""


@triton.jit
def token_standing_kernel(
    standing_1: tl.tensor,  # [batch, SIZE]: what comes out where a segment has ended
    standing_2: tl.tensor,
    held_1: tl.tensor,  # [batch, SIZE]
    held_2: tl.tensor,
    position: tl.tensor,  # [batch], tokens seen
    segment: int,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """One program is a block of one sample's matrices, and mostly done when it has looked where the sample stands."""
    await_the_one_before(OVERLAPS)
    sample = tl.program_id(0).to(tl.int64)
    inside = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ended = tl.load(position + sample) % segment == 0
    where = sample * SIZE + tl.minimum(inside, SIZE - 1)
    copied_if(ended, standing_1 + where, held_1 + where)
    copied_if(ended, standing_2 + where, held_2 + where)


@torch.library.custom_op(
    "lockstep::stand_",
    mutates_args=("standing",),
    schema="(Tensor(a!)[] standing, Tensor[] held, Tensor position, int segment) -> ()",
)
def stand_(standing: Sequence[Tensor], held: Sequence[Tensor], position: Tensor, segment: int) -> None:
    """Two matrices [batch, heads, in, out] as two others are, in samples whose `position` ends a segment.

    All are in one piece, and of one size.
    """
    record(NAME)
    if not all(matrix.is_contiguous() for matrix in standing):
        raise ValueError("a standing memory that is written over must be in one piece, each matrix of it")
    size = standing[0][0].numel()
    grid = len(position), triton.cdiv(size, BLOCK)
    token_standing_kernel[grid](
        *standing, *held, position, segment, SIZE=size, BLOCK=BLOCK, num_warps=4, **started(position)
    )


@stand_.register_fake
def _(*_: object) -> None:
    return None
