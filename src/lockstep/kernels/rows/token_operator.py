"""The rows of one token of each sample, as one operator that writes over the tail.

Rows are what `operator` makes of many tokens: parts of several heads each, all of one width. They are recurrences' and
those of memories of one matrix, or observed; the kernel of another memory's token makes its own (`memory.token_step`).

Decoding is bound by how many kernels it launches, so that all of it is one; in 32 bits, whatever comes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.record import record
from lockstep.kernels.rows.single import convolved_before, put_tail, row_of, staying
from lockstep.kernels.rows.walking import scale_of
from lockstep.kernels.succession import started
from lockstep.kernels.waiting import await_the_one_before

NAME = "token rows"


@triton.jit
def token_rows_kernel(
    projected: tl.tensor,  # [batch, all heads × WIDTH]
    weight: tl.tensor,  # [TAPS, all heads × WIDTH], `weight_stride` apart
    tail: tl.tensor,  # [batch, TAPS - 1, all heads × WIDTH]: written over
    bias: tl.tensor,  # [all heads × WIDTH]
    rows: tl.tensor,  # of each part [batch, heads, WIDTH], one behind the other: what comes out
    second: int,  # the first head of the second part
    third: int,
    heads: int,  # of all parts
    weight_stride: int,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    FIRST_LENGTH: tl.constexpr,  # of vectors of the first part, and so on
    SECOND_LENGTH: tl.constexpr,
    THIRD_LENGTH: tl.constexpr,
    EPSILON: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """One program is one head of one sample; no two touch the same of a tail."""
    sample, head, batch = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(0)
    column, channels, wide = head * WIDTH, heads * WIDTH, tl.arange(0, WIDTH)[None, :]
    tail += sample * (TAPS - 1) * channels + column
    said, last = convolved_before(tail, weight + column, bias, column, channels, weight_stride, WIDTH, TAPS)
    left = staying(tail, channels, WIDTH, TAPS)
    # Of its part: the first head, how many there are, and the length of its vectors.
    first = tl.where(head < second, 0, tl.where(head < third, second, third))
    count = tl.where(head < second, second, tl.where(head < third, third, heads)) - first
    length = tl.where(head < second, FIRST_LENGTH, tl.where(head < third, SECOND_LENGTH, THIRD_LENGTH))
    await_the_one_before(OVERLAPS)
    x = tl.load(projected + sample * channels + column + wide)
    y = row_of(x, said, last)
    y *= tl.where(length == 0, 1.0, scale_of(y, EPSILON) * length)
    tl.debug_barrier()  # all of the tail is read before any of it is written
    put_tail(tail, left, x, channels, WIDTH, TAPS)
    tl.store(rows + (batch * first + sample * count + head - first) * WIDTH + wide, y.to(rows.dtype.element_ty))


LENGTHS = ("FIRST_LENGTH", "SECOND_LENGTH", "THIRD_LENGTH")
TENSORS = 4


class Token(NamedTuple):
    """One call; everything but the weight in one piece."""

    projected: Tensor  # [batch, all heads × width]
    weight: Tensor  # [taps, all heads × width]
    tail: Tensor  # [batch, taps - 1, all heads × width], of what came before
    bias: Tensor | None  # [all heads × width]
    heads: Sequence[int]
    """Of each part, of which there are three at most."""
    lengths: Sequence[float]
    """That each part's vectors are given; 0 leaves them as they are."""
    epsilon: float
    dtype: torch.dtype | None
    """Of the rows, if not that of the projections."""

    @property
    def places(self) -> tuple[int, int, int]:
        """The first heads of the second and of the third part, and how many heads there are."""
        second, third, heads = (sum(self.heads[:part]) for part in (1, 2, 3))
        return second, third, heads

    def room(self) -> Tensor:
        """For the rows."""
        return self.projected.new_empty(self.projected.numel(), dtype=self.dtype)

    @property
    def constants(self) -> dict[str, Any]:
        sizes = {"WIDTH": self.projected.shape[-1] // sum(self.heads), "TAPS": self.weight.shape[0]}
        lengths = dict(zip(LENGTHS, (*self.lengths, 0.0, 0.0), strict=False))
        return sizes | lengths | {"EPSILON": self.epsilon}


@torch.library.custom_op(
    "lockstep::token_rows_",
    mutates_args=("tail",),
    schema="(Tensor projected, Tensor weight, Tensor(a!) tail, Tensor? bias, int[] heads, float[] lengths,"
    " float epsilon, ScalarType? dtype) -> Tensor",
)
def token_rows_(*arguments: Any) -> Tensor:
    """Of each part its rows, one part behind the other: convolved after the tail, activated, and of their length.

    The tail is then the one after this token.
    """
    record(NAME)
    given = Token(*arguments)
    if not given.tail.is_contiguous():
        raise ValueError("a tail that is written over must be in one piece")
    rows = given.room()
    token_rows_kernel[len(given.projected), sum(given.heads)](
        *given[:TENSORS],
        rows,
        *given.places,
        given.weight.stride(0),
        **given.constants,
        num_warps=1,
        **started(rows),
    )
    return rows


@token_rows_.register_fake
def _(*arguments: Any) -> Tensor:
    return Token(*arguments).room()
