"""What one token of each sample brings to a memory, rows and gates, as one operator that writes over the tail.

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

NAME = "token rows"
AT_ONCE = 1024
"""Numbers of a token that a gate's program multiplies at once, at most."""


@triton.jit
def make_row(
    projected: tl.tensor,  # [WIDTH], of a head and a part of it, and so on
    weight: tl.tensor,  # [TAPS, WIDTH], `weight_stride` apart
    tail: tl.tensor,  # [TAPS - 1, WIDTH], `channels` apart: written over
    row: tl.tensor,  # [WIDTH]: what comes out
    unit: tl.tensor,  # whether it is given unit length
    weight_stride: int,
    channels: int,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    EPSILON: tl.constexpr,
) -> None:
    wide = tl.arange(0, WIDTH)[None, :]
    taps = taps_of(weight, weight_stride, WIDTH, TAPS)
    x, before = tl.load(projected + wide), ()
    for tap in tl.static_range(TAPS - 1):
        before = extended(before, tl.load(tail + tap * channels + wide))
    y = activate(convolved(before, x, taps, offset_of(None, 0, WIDTH), TAPS), "silu")
    y *= tl.where(unit, scale_of(y, EPSILON), 1.0)
    tl.store(row + wide, y.to(row.dtype.element_ty))
    tl.debug_barrier()  # all of the tail is read before any of it is written
    for tap in tl.static_range(TAPS - 2):
        tl.store(tail + tap * channels + wide, before[tap + 1])
    tl.store(tail + (TAPS - 2) * channels + wide, x.to(tail.dtype.element_ty))


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
    projected: tl.tensor,  # [batch, PARTS × heads × WIDTH]
    weight: tl.tensor,  # [TAPS, PARTS × heads × WIDTH], `weight_stride` apart
    tail: tl.tensor,  # [batch, TAPS - 1, PARTS × heads × WIDTH]: written over
    x: tl.tensor,  # [batch, DIM]
    gate_weight: tl.tensor,  # [gates × heads, DIM]: of keep none where nothing decays
    gate_bias: tl.tensor,  # [gates × heads]
    rows: tl.tensor,  # [PARTS, batch, heads, WIDTH]: what comes out
    gates: tl.tensor,  # [GATES, batch, heads]: what comes out
    units: int,
    heads: int,
    weight_stride: int,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    PARTS: tl.constexpr,
    EPSILON: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    GATES: tl.constexpr,
    DECAY: tl.constexpr,
    THRESHOLD: tl.constexpr,
    LARGEST: tl.constexpr,
) -> None:
    """One program is one row of one part, or one gate, of one head of one sample; no two touch the same of a tail."""
    index, part, count = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    sample, head = (index // heads).to(tl.int64), index % heads
    if part < PARTS:
        column, channels = (part * heads + head) * WIDTH, PARTS * heads * WIDTH
        make_row(
            projected + sample * channels + column,
            weight + column,
            tail + sample * (TAPS - 1) * channels + column,
            rows + (part * count + index) * WIDTH,
            (units >> part) & 1 == 1,
            weight_stride,
            channels,
            WIDTH,
            TAPS,
            EPSILON,
        )
    elif GATES:
        gate = part - PARTS
        which = (gate if DECAY else tl.maximum(gate - 1, 0)) * heads + head
        logit = logit_of(x + sample * DIM, gate_weight + which * DIM, gate_bias + which, DIM, BLOCK)
        tl.store(gates + gate * count + index, gate_of(logit, gate, GATES, DECAY, THRESHOLD, LARGEST))


class Token(NamedTuple):
    """One call; everything but the weight in one piece, the gates' share missing where none are wanted."""

    projected: Tensor  # [batch, parts × heads × width]
    weight: Tensor  # [taps, parts × heads × width]
    tail: Tensor  # [batch, taps - 1, parts × heads × width], of what came before
    x: Tensor | None  # [batch, dim]
    gate_weight: Tensor | None  # [gates × heads, dim]
    gate_bias: Tensor | None  # [gates × heads]
    heads: int
    units: Sequence[bool]
    """Of each part, whether its vectors are given unit length."""
    epsilon: float
    decay: bool
    """Whether the first gate is there: without it everything is kept."""
    threshold: bool
    """Whether the last gate is a threshold."""
    largest: float
    """Rate."""

    @property
    def width(self) -> int:
        return self.projected.shape[-1] // (self.heads * len(self.units))

    @property
    def gates(self) -> int:
        return 0 if self.gate_weight is None else self.gate_weight.shape[0] // self.heads + int(not self.decay)

    def room(self) -> tuple[Tensor, Tensor]:
        """For rows and gates."""
        rows = self.projected.new_empty(len(self.units), len(self.projected), self.heads, self.width)
        return rows, rows.new_empty(self.gates, len(self.projected), self.heads, dtype=torch.float32)

    @property
    def constants(self) -> dict[str, Any]:
        dim = 1 if self.x is None else self.x.shape[-1]
        sizes = {"WIDTH": self.width, "TAPS": self.weight.shape[0], "PARTS": len(self.units), "DIM": dim}
        kind = {"EPSILON": self.epsilon, "DECAY": self.decay, "THRESHOLD": self.threshold, "LARGEST": self.largest}
        return sizes | kind | {"GATES": self.gates, "BLOCK": min(triton.next_power_of_2(dim), AT_ONCE)}


@torch.library.custom_op(
    "lockstep::token_rows_",
    mutates_args=("tail",),
    schema="(Tensor projected, Tensor weight, Tensor(a!) tail, Tensor? x, Tensor? gate_weight, Tensor? gate_bias,"
    " int heads, bool[] units, float epsilon, bool decay, bool threshold, float largest) -> (Tensor, Tensor)",
)
def token_rows_(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Of each part its rows [parts, batch, heads, width]: convolved after the tail, activated, unit where asked.

    And, from x, the gates [gates, batch, heads] in 32 bits. The tail is then the one after this token.
    """
    record(NAME)
    given = Token(*arguments)
    if not given.tail.is_contiguous():
        raise ValueError("a tail that is written over must be in one piece")
    rows, gates = given.room()
    token_rows_kernel[len(given.projected) * given.heads, len(given.units) + given.gates](
        *given[:6],
        rows,
        gates,
        sum(unit << part for part, unit in enumerate(given.units)),
        given.heads,
        given.weight.stride(0),
        **given.constants,
        num_warps=1,
    )
    return rows, gates


@token_rows_.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    return Token(*arguments).room()
