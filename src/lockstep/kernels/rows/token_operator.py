"""The rows of one token of each sample, and with them a memory's gates, as one operator that writes over the tail.

Rows are what `operator` makes of many tokens: parts of several heads each, all of one width.

Decoding is bound by how many kernels it launches, so that all of it is one; in 32 bits, whatever comes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.memory.activations import activate
from lockstep.kernels.record import record
from lockstep.kernels.rows.walking import convolved, extended, offset_of, scale_of, taps_of
from lockstep.kernels.succession import started
from lockstep.kernels.waiting import await_the_one_before

NAME = "token rows"
AT_ONCE = 1024
"""Numbers of a token that a gate's program multiplies at once, at most."""


@triton.jit
def row_after(
    x: tl.tensor,  # [1, WIDTH], of a head and a part of it, and so on: what is projected of the token
    weight: tl.tensor,  # [TAPS, WIDTH], `weight_stride` apart
    tail: tl.tensor,  # [TAPS - 1, WIDTH], `channels` apart: written over
    offset: tl.tensor,  # [1, WIDTH]: the bias
    length: tl.tensor,  # that the row is given; 0 leaves it as it is
    weight_stride: int,
    channels: int,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    EPSILON: tl.constexpr,
) -> tl.tensor:
    """Its row [1, WIDTH] in 32 bits."""
    wide = tl.arange(0, WIDTH)[None, :]
    taps, before = taps_of(weight, weight_stride, WIDTH, TAPS), ()
    for tap in tl.static_range(TAPS - 1):
        before = extended(before, tl.load(tail + tap * channels + wide))
    y = activate(convolved(before, x, taps, offset, TAPS), "silu")
    y *= tl.where(length == 0, 1.0, scale_of(y, EPSILON) * length)
    tl.debug_barrier()  # all of the tail is read before any of it is written
    for tap in tl.static_range(TAPS - 2):
        tl.store(tail + tap * channels + wide, before[tap + 1])
    tl.store(tail + (TAPS - 2) * channels + wide, x.to(tail.dtype.element_ty))
    return y


@triton.jit
def logit_of(x: tl.tensor, weight: tl.tensor, bias: tl.tensor, DIM: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """What a linear map says to x [DIM]: its weight is [DIM] here, its bias one number."""
    products = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, DIM, BLOCK):
        where = start + tl.arange(0, BLOCK)
        numbers = tl.load(x + where, mask=where < DIM, other=0.0).to(tl.float32)
        products += numbers * tl.load(weight + where, mask=where < DIM, other=0.0).to(tl.float32)
    return tl.sum(products, axis=0) + tl.load(bias).to(tl.float32)


@triton.jit
def gate_of(
    logit: tl.tensor,
    gate: tl.tensor,
    GATES: tl.constexpr,
    DECAY: tl.constexpr,
    THRESHOLD: tl.constexpr,
    LARGEST: tl.constexpr,
) -> tl.tensor:
    """As `NeuralMemory.gate_values`: keep, rate, momentum and threshold in this order, of which GATES are there."""
    small = tl.exp(-tl.abs(logit))
    value = tl.where(logit >= 0, 1.0, small) / (1.0 + small)
    value *= tl.where(gate == 1, LARGEST, 1.0)
    if THRESHOLD:
        value = tl.where(gate == GATES - 1, tl.maximum(logit, 0.0) + tl.log(1.0 + small), value)
    if not DECAY:
        value = tl.where(gate == 0, 1.0, value)
    return value


@triton.jit
def token_rows_kernel(
    projected: tl.tensor,  # [batch, all heads × WIDTH]
    weight: tl.tensor,  # [TAPS, all heads × WIDTH], `weight_stride` apart
    tail: tl.tensor,  # [batch, TAPS - 1, all heads × WIDTH]: written over
    bias: tl.tensor,  # [all heads × WIDTH]
    x: tl.tensor,  # [batch, DIM]
    gate_weight: tl.tensor,  # [gates × heads of the first part, DIM]: of keep none where nothing decays
    gate_bias: tl.tensor,  # [gates × heads of the first part]
    rows: tl.tensor,  # of each part [batch, heads, WIDTH], one behind the other: what comes out
    gates: tl.tensor,  # [GATES, batch, heads of the first part]: what comes out
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
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    GATES: tl.constexpr,
    DECAY: tl.constexpr,
    THRESHOLD: tl.constexpr,
    LARGEST: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """One program is one head, or one gate of one, of one sample; no two touch the same of a tail."""
    await_the_one_before(OVERLAPS)
    sample, head, batch = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(0)
    if head < heads:
        column, channels = head * WIDTH, heads * WIDTH
        # Of its part: the first head, how many there are, and the length of its vectors.
        first = tl.where(head < second, 0, tl.where(head < third, second, third))
        count = tl.where(head < second, second, tl.where(head < third, third, heads)) - first
        later = tl.where(head < third, SECOND_LENGTH, THIRD_LENGTH)
        wide = tl.arange(0, WIDTH)[None, :]
        y = row_after(
            tl.load(projected + sample * channels + column + wide),
            weight + column,
            tail + sample * (TAPS - 1) * channels + column,
            offset_of(bias, column, WIDTH),
            tl.where(head < second, FIRST_LENGTH, later),
            weight_stride,
            channels,
            WIDTH,
            TAPS,
            EPSILON,
        )
        tl.store(rows + (batch * first + sample * count + head - first) * WIDTH + wide, y.to(rows.dtype.element_ty))
    elif GATES:
        gate, which = (head - heads) // second, (head - heads) % second
        learned = (gate if DECAY else tl.maximum(gate - 1, 0)) * second + which
        logit = logit_of(x + sample * DIM, gate_weight + learned * DIM, gate_bias + learned, DIM, BLOCK)
        value = gate_of(logit, gate, GATES, DECAY, THRESHOLD, LARGEST)
        tl.store(gates + (gate * batch + sample) * second + which, value)


LENGTHS = ("FIRST_LENGTH", "SECOND_LENGTH", "THIRD_LENGTH")
TENSORS = 7


class Token(NamedTuple):
    """One call; everything but the weight in one piece, the gates' share missing where none are wanted."""

    projected: Tensor  # [batch, all heads × width]
    weight: Tensor  # [taps, all heads × width]
    tail: Tensor  # [batch, taps - 1, all heads × width], of what came before
    bias: Tensor | None  # [all heads × width]
    x: Tensor | None  # [batch, dim]
    gate_weight: Tensor | None  # [gates × heads of the first part, dim]
    gate_bias: Tensor | None  # [gates × heads of the first part]
    heads: Sequence[int]
    """Of each part, of which there are three at most."""
    lengths: Sequence[float]
    """That each part's vectors are given; 0 leaves them as they are."""
    epsilon: float
    decay: bool
    """Whether the first gate is there: without it everything is kept."""
    threshold: bool
    """Whether the last gate is a threshold."""
    largest: float
    """Rate."""
    dtype: torch.dtype | None
    """Of the rows, if not that of the projections."""

    @property
    def width(self) -> int:
        return self.projected.shape[-1] // sum(self.heads)

    @property
    def gates(self) -> int:
        return 0 if self.gate_weight is None else self.gate_weight.shape[0] // self.heads[0] + int(not self.decay)

    @property
    def places(self) -> tuple[int, int, int]:
        """The first heads of the second and of the third part, and how many heads there are."""
        second, third, heads = (sum(self.heads[:part]) for part in (1, 2, 3))
        return second, third, heads

    def room(self) -> tuple[Tensor, Tensor]:
        """For rows and gates."""
        rows = self.projected.new_empty(self.projected.numel(), dtype=self.dtype)
        return rows, rows.new_empty(self.gates, len(self.projected), self.heads[0], dtype=torch.float32)

    @property
    def constants(self) -> dict[str, Any]:
        dim = 1 if self.x is None else self.x.shape[-1]
        sizes = {"WIDTH": self.width, "TAPS": self.weight.shape[0], "DIM": dim}
        lengths = dict(zip(LENGTHS, (*self.lengths, 0.0, 0.0), strict=False))
        kind = {
            **lengths,
            "EPSILON": self.epsilon,
            "DECAY": self.decay,
            "THRESHOLD": self.threshold,
            "LARGEST": self.largest,
        }
        return sizes | kind | {"GATES": self.gates, "BLOCK": min(triton.next_power_of_2(dim), AT_ONCE)}


@torch.library.custom_op(
    "lockstep::token_rows_",
    mutates_args=("tail",),
    schema="(Tensor projected, Tensor weight, Tensor(a!) tail, Tensor? bias, Tensor? x, Tensor? gate_weight,"
    " Tensor? gate_bias, int[] heads, float[] lengths, float epsilon, bool decay, bool threshold, float largest,"
    " ScalarType? dtype)"
    " -> (Tensor, Tensor)",
)
def token_rows_(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Of each part its rows, one part behind the other: convolved after the tail, activated, and of their length.

    And, from x, gates [gates, batch, heads of the first part] in 32 bits. The tail is then the one after this token.
    """
    record(NAME)
    given = Token(*arguments)
    if not given.tail.is_contiguous():
        raise ValueError("a tail that is written over must be in one piece")
    rows, gates = given.room()
    second, _, heads = given.places
    token_rows_kernel[len(given.projected), heads + given.gates * second](
        *given[:TENSORS],
        rows,
        gates,
        *given.places,
        given.weight.stride(0),
        **given.constants,
        num_warps=1,
        **started(rows),
    )
    return rows, gates


@token_rows_.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    return Token(*arguments).room()
