"""A memory of two matrices with an activation between them: whole chunks as one operator, by Triton.

Forward: the closed form of each chunk, the memory's way from chunk to chunk, and then all reads at once. Backward: the
adjoints of all reads at once, the way back from chunk to chunk, the gates. What is kept between the two is the memory
at each chunk's start, in the precision of the tokens; everything else is computed again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lockstep.kernels.memory import hopper
from lockstep.kernels.memory.chain import chain_backward_kernel, chain_kernel
from lockstep.kernels.memory.coefficients import Coefficients, coefficients, through_coefficients
from lockstep.kernels.memory.reading import read_backward_kernel, read_kernel
from lockstep.kernels.memory.settling import anchor_kernel, settle_kernel
from lockstep.kernels.memory.writing import rewrite_kernel

BLOCK = 64
"""Hidden units that a program takes at a time."""
CHAIN_BLOCK = 512 if triton.knobs.runtime.interpret else BLOCK
"""The same for programs that walk a row. Interpreted ones run one after the other: none can wait for another, so that
one must do."""


class Tokens(NamedTuple):
    """What is written and read, [rows, time, width], gates [rows, time], and what the outer model lends."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    keep: Tensor
    rate: Tensor
    momentum: Tensor | None
    threshold: Tensor | None
    gain: Tensor | None  # [heads, width]
    shift: Tensor | None
    anchors: Tensor | None  # [heads or rows, 2, width, hidden], the second matrix turned


class Chunks:
    """One call: shapes, constants, and room for what the kernels leave to each other."""

    def __init__(
        self,
        tokens: Tokens,
        heads: int,
        chunk: int,
        residual: bool,
        norm: bool,
        bias: str,
        p: float,
        activation: str,
        *,
        hidden: int,
    ) -> None:
        if tokens.anchors is not None:
            # An operand of products, as the tokens are.
            tokens = tokens._replace(anchors=tokens.anchors.to(tokens.keys.dtype).contiguous())
        self.tokens, self.hidden, self.heads = tokens, hidden, heads
        self.rows, self.time, self.width = tokens.keys.shape
        self.chunk, self.chunks = chunk, self.time // chunk
        self.parts = 2 if tokens.momentum is None else 4
        exact = tokens.keys.dtype == torch.float32
        self.closed_form: dict[str, Any] = {
            "CHUNK": chunk,
            "MOMENTUM": tokens.momentum is not None,
            # Three passes of the matrix units give 32-bit operands nearly all of their 32 bits.
            "PRECISION": "tf32x3" if exact else "tf32",
        }
        self.memory: dict[str, Any] = {
            "ANCHOR": tokens.anchors is not None,
            "NORM": norm,
            "RESIDUAL": residual,
            "BIAS": bias,
            "P": p,
            "ACTIVATION": activation,
        }

    def constants(self, largest: int) -> dict[str, Any]:
        """Of kernels that take `largest` hidden units at a time, or all of them if they are fewer."""
        block = min(self.hidden, largest)
        sizes = {"WIDTH": self.width, "BLOCK": block, "SPLIT": self.hidden // block}
        return self.closed_form | self.memory | sizes | {"num_warps": 4, "num_stages": 1}

    @property
    def sizes(self) -> tuple[int, int, int]:
        anchors = self.tokens.anchors
        return self.heads, 1 if anchors is None else anchors.shape[0], self.chunks

    def room(self, *shape: int) -> Tensor:
        """[rows, …] in the tokens' precision."""
        return self.tokens.keys.new_empty(self.rows, *shape)

    def units(self) -> Tensor:
        """[rows, time, hidden]."""
        return self.room(self.time, self.hidden)

    def outputs(self) -> Tensor:
        """[rows, time, width]."""
        return self.room(self.time, self.width)

    def scalars(self, *shape: int) -> Tensor:
        """[rows, …] in 32 bits."""
        return self.tokens.keys.new_empty(self.rows, *shape, dtype=torch.float32)

    def meeting(self, split: int) -> tuple[Tensor, Tensor]:
        """Where programs of a row add up what they found."""
        return self.scalars(2, split, self.chunk, self.width), self.scalars().zero_().int()

    def coefficients(self) -> Coefficients:
        return coefficients(*self.tokens[3:6], self.room(self.time, self.chunk))


class Sheets:
    """Tensors of a call as sheets of tiles, for kernels with blocks of so many hidden units."""

    def __init__(self, run: Chunks, block: int) -> None:
        self.run, self.block = run, min(run.hidden, block)

    def rows(self, *tensors: Tensor) -> list[TensorDescriptor]:
        """[rows, time, width], a chunk a tile."""
        return [sheet(x, self.run.chunk, x.shape[-1]) for x in tensors]

    def units(self, *tensors: Tensor) -> list[TensorDescriptor]:
        """[rows, time, hidden], a block of a chunk a tile."""
        return [sheet(x, self.run.chunk, self.block) for x in tensors]

    def matrices(self, x: Tensor | None) -> TensorDescriptor | None:
        """[…, width, hidden], a block of a matrix a tile."""
        return None if x is None else sheet(x, self.run.width, self.block)


def sheet(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A tensor's last dimension across, all others down."""
    return TensorDescriptor.from_tensor(x.view(-1, x.shape[-1]), [rows, columns])


def forward(run: Chunks, held: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reads, the memory after the last chunk, and the copies of it that the way back needs."""
    tokens, found = run.tokens, run.coefficients()
    last = held.clone()
    copies = run.room(run.chunks, run.parts, run.width, run.hidden)
    inputs, first_errors, last_errors = run.units(), run.units(), run.outputs()
    walk(run, found, last, copies, inputs, first_errors, last_errors)
    reads, sheets = torch.empty_like(tokens.queries), Sheets(run, BLOCK)
    read_kernel[(run.rows * run.chunks,)](
        *sheets.rows(tokens.queries, tokens.keys),
        tokens.gain,
        tokens.shift,
        found.kept,
        found.carried,
        *sheets.rows(found.written),
        sheets.matrices(tokens.anchors),
        sheets.matrices(copies),
        *sheets.units(inputs, first_errors),
        *sheets.rows(last_errors),
        *sheets.rows(reads),
        *run.sizes,
        **run.constants(BLOCK),
    )
    return reads, last, copies


def walk(
    run: Chunks,
    found: Coefficients,
    held: Tensor,
    copies: Tensor,
    inputs: Tensor,
    first_errors: Tensor,
    last_errors: Tensor,
) -> None:
    """From the first chunk to the last; `held` is replaced, what follows it is filled."""
    if hopper.suited(run):
        return hopper.walk(run, found, held, copies, inputs, first_errors, last_errors)
    tokens, constants, sheets = run.tokens, run.constants(CHAIN_BLOCK), Sheets(run, CHAIN_BLOCK)
    chain_kernel[(run.rows * constants["SPLIT"],)](
        *sheets.rows(tokens.keys, tokens.values),
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        *found.ends,
        sheets.matrices(tokens.anchors),
        held,
        sheets.matrices(copies),
        *sheets.units(inputs, first_errors),
        *sheets.rows(last_errors),
        *run.meeting(constants["SPLIT"]),
        *run.sizes,
        **constants,
    )


class Written(NamedTuple):
    """What chunks wrote, computed once more."""

    inputs: Tensor
    slopes: Tensor
    bends: Tensor
    first_errors: Tensor
    last_errors: Tensor
    normals: Tensor
    scales: Tensor


class Back(NamedTuple):
    """Adjoints on their way: by the reads first, and then replaced by those of what comes before."""

    read_inputs: Tensor  # what was read, which goes along
    read_outputs: Tensor
    read_last: Tensor
    returned: Tensor
    last_errors: Tensor
    hidden: Tensor


def backward(run: Chunks, copies: Tensor, reads_bar: Tensor, last_bar: Tensor) -> tuple[Tensor, ...]:
    """Adjoints of what `Tokens` has, in its order, and of the first memory; those of absent ones mean nothing."""
    tokens, found = run.tokens, run.coefficients()
    made = rewritten(run, copies)
    bars = Back(run.units(), run.units(), run.outputs(), run.units(), run.outputs(), run.units())
    queries_bar, keys_bar = torch.empty_like(tokens.queries), torch.empty_like(tokens.keys)
    kept_bar, carried_bar, written_bar = run.scalars(run.time), run.scalars(run.time), run.room(run.time, run.chunk)
    read_gain_bar, read_shift_bar = run.scalars(run.chunks, run.width), run.scalars(run.chunks, run.width)
    sheets = Sheets(run, BLOCK)
    read_backward_kernel[(run.rows * run.chunks,)](
        *sheets.rows(tokens.queries, tokens.keys, reads_bar),
        tokens.gain,
        found.kept,
        found.carried,
        *sheets.rows(found.written),
        sheets.matrices(tokens.anchors),
        sheets.matrices(copies),
        *sheets.units(made.inputs, made.first_errors),
        *sheets.rows(made.last_errors),
        bars.read_inputs,
        bars.read_outputs,
        *sheets.rows(bars.read_last),
        *sheets.units(bars.returned),
        *sheets.rows(bars.last_errors),
        *sheets.units(bars.hidden),
        *sheets.rows(keys_bar, queries_bar),
        kept_bar,
        carried_bar,
        written_bar,
        read_gain_bar,
        read_shift_bar,
        *run.sizes,
        **run.constants(BLOCK),
    )
    errors_bar, held_bar = run.outputs(), last_bar.clone()
    copies_bar = torch.empty_like(copies)
    walk_back(run, found, copies, made, bars, errors_bar, copies_bar, held_bar)
    values_bar, threshold_bar = torch.empty_like(tokens.values), run.scalars(run.time)
    gain_bar, shift_bar = torch.empty_like(read_gain_bar), torch.empty_like(read_shift_bar)
    end_kept_bar, end_carried_bar, end_velocity_kept_bar = (run.scalars(run.chunks) for _ in range(3))
    end_written_bar, end_velocity_written_bar = run.scalars(run.time), run.scalars(run.time)
    ends_bar = (end_kept_bar, end_carried_bar, end_written_bar, end_velocity_kept_bar, end_velocity_written_bar)
    settle_kernel[(run.rows * run.chunks,)](
        *sheets.rows(tokens.keys, tokens.values),
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        found.end_written,
        found.end_velocity_written,
        sheets.matrices(tokens.anchors),
        sheets.matrices(copies),
        *sheets.units(made.inputs, made.first_errors),
        *sheets.rows(made.last_errors, made.normals),
        made.scales,
        *sheets.rows(errors_bar),
        *sheets.units(bars.hidden),
        sheets.matrices(copies_bar),
        *sheets.rows(keys_bar, values_bar),
        threshold_bar,
        gain_bar,
        shift_bar,
        *ends_bar,
        *run.sizes,
        **run.constants(BLOCK),
    )
    gates_bar = through_coefficients(*tokens[3:6], found, (kept_bar, carried_bar, written_bar), ends_bar)
    lent_bar = [
        one.add_(other).sum(1).unflatten(0, (-1, run.heads)).sum(0)
        for one, other in ((gain_bar, read_gain_bar), (shift_bar, read_shift_bar))
    ]
    anchors_bar = through_anchor(run, made, bars, errors_bar)
    return queries_bar, keys_bar, values_bar, *gates_bar, threshold_bar, *lent_bar, anchors_bar, held_bar


def rewritten(run: Chunks, copies: Tensor) -> Written:
    tokens, sheets = run.tokens, Sheets(run, BLOCK)
    made = Written(
        run.units(), run.units(), run.units(), run.units(), run.outputs(), run.outputs(), run.scalars(run.time)
    )
    rewrite_kernel[(run.rows * run.chunks,)](
        *sheets.rows(tokens.keys, tokens.values),
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        sheets.matrices(tokens.anchors),
        sheets.matrices(copies),
        *sheets.units(*made[:4]),
        *sheets.rows(*made[4:6]),
        made.scales,
        *run.sizes,
        **run.constants(BLOCK),
    )
    return made


def walk_back(
    run: Chunks,
    found: Coefficients,
    copies: Tensor,
    made: Written,
    bars: Back,
    errors_bar: Tensor,
    copies_bar: Tensor,
    held_bar: Tensor,
) -> None:
    """From the last chunk to the first; the last three arguments, and some of `bars`, are filled."""
    if hopper.suited(run):
        return hopper.walk_back(run, found, copies, made, bars, errors_bar, copies_bar, held_bar)
    tokens, constants, sheets = run.tokens, run.constants(CHAIN_BLOCK), Sheets(run, CHAIN_BLOCK)
    chain_backward_kernel[(run.rows * constants["SPLIT"],)](
        *sheets.rows(tokens.queries, tokens.keys, tokens.values),
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        *found.ends,
        sheets.matrices(tokens.anchors),
        sheets.matrices(copies),
        *sheets.units(made.inputs, made.slopes, made.bends),
        *sheets.rows(made.last_errors, made.normals),
        made.scales,
        *sheets.units(bars.read_inputs, bars.read_outputs),
        *sheets.rows(bars.read_last),
        *sheets.units(bars.returned),
        *sheets.rows(bars.last_errors),
        *sheets.units(bars.hidden),
        *sheets.rows(errors_bar),
        sheets.matrices(copies_bar),
        held_bar,
        *run.meeting(constants["SPLIT"]),
        *run.sizes,
        **constants,
    )


SPAN = 16
"""Chunks of which one program adds up the anchor's adjoints, so that few rows fill a device too."""


def through_anchor(run: Chunks, made: Written, bars: Back, outputs_bar: Tensor) -> Tensor:
    """The adjoints of the anchors, in 32 bits."""
    tokens, sheets, constants = run.tokens, Sheets(run, BLOCK), run.constants(BLOCK)
    if tokens.anchors is None:
        return outputs_bar.new_empty(0, dtype=torch.float32)
    span = math.gcd(run.chunks, SPAN)
    sums = run.scalars(run.chunks // span, 2, run.width, run.hidden).flatten(0, 1)
    anchor_kernel[(sums.shape[0] * constants["SPLIT"],)](
        *sheets.rows(tokens.queries, tokens.keys),
        *sheets.units(made.inputs),
        *sheets.rows(made.last_errors),
        *sheets.units(bars.read_inputs, bars.read_outputs),
        *sheets.rows(bars.read_last),
        *sheets.units(bars.returned),
        *sheets.rows(outputs_bar),
        *sheets.units(bars.hidden),
        sums,
        span,
        **{name: constants[name] for name in ("CHUNK", "WIDTH", "BLOCK", "SPLIT", "PRECISION", "num_warps")},
        num_stages=2,
    )
    by_anchor: Tensor = sums.unflatten(0, (-1, tokens.anchors.shape[0], run.chunks // span))
    return by_anchor.sum((0, 2))
