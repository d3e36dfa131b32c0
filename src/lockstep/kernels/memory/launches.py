"""How the kernels are started that run everywhere; `hopper` has the same by the same names for what it knows."""

from __future__ import annotations

import math

import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lockstep.kernels.memory.call import Back, Chunks, EndBar, ReadBar, Rewritten, Written
from lockstep.kernels.memory.chain import chain_backward_kernel, chain_kernel
from lockstep.kernels.memory.coefficients import Coefficients
from lockstep.kernels.memory.reading import read_backward_kernel, read_kernel
from lockstep.kernels.memory.settling import anchor_kernel, settle_kernel
from lockstep.kernels.memory.writing import rewrite_kernel

BLOCK = 64
"""Hidden units that a program takes at a time."""
CHAIN_BLOCK = 512 if triton.knobs.runtime.interpret else BLOCK
"""The same for programs that walk a row. Interpreted ones run one after the other: none can wait for another, so that
one must do."""


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


def walk(run: Chunks, found: Coefficients, held: Tensor, copies: Tensor, wrote: Written) -> None:
    """From the first chunk to the last; `held` is replaced, what follows it is filled."""
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
        *sheets.units(wrote.inputs, wrote.first_errors),
        *sheets.rows(wrote.last_errors),
        *run.meeting(constants["SPLIT"]),
        *run.sizes,
        **constants,
    )


def read(run: Chunks, found: Coefficients, copies: Tensor, wrote: Written, reads: Tensor) -> None:
    """All chunks side by side, as in what follows but for the way back."""
    tokens, sheets = run.tokens, Sheets(run, BLOCK)
    read_kernel[(run.rows * run.chunks,)](
        *sheets.rows(tokens.queries, tokens.keys),
        tokens.gain,
        tokens.shift,
        found.kept,
        found.carried,
        *sheets.rows(found.written),
        sheets.matrices(tokens.anchors),
        sheets.matrices(copies),
        *sheets.units(wrote.inputs, wrote.first_errors),
        *sheets.rows(wrote.last_errors, reads),
        *run.sizes,
        **run.constants(BLOCK),
    )


def rewrite(run: Chunks, copies: Tensor, made: Rewritten) -> None:
    tokens, sheets = run.tokens, Sheets(run, BLOCK)
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


def read_back(
    run: Chunks,
    found: Coefficients,
    copies: Tensor,
    wrote: Written,
    reads_bar: Tensor,
    bars: Back,
    read_bar: ReadBar,
) -> None:
    """The last two are filled."""
    tokens, sheets = run.tokens, Sheets(run, BLOCK)
    read_backward_kernel[(run.rows * run.chunks,)](
        *sheets.rows(tokens.queries, tokens.keys, reads_bar),
        tokens.gain,
        found.kept,
        found.carried,
        *sheets.rows(found.written),
        sheets.matrices(tokens.anchors),
        sheets.matrices(copies),
        *sheets.units(wrote.inputs, wrote.first_errors),
        *sheets.rows(wrote.last_errors),
        bars.read_inputs,
        bars.read_outputs,
        *sheets.rows(bars.read_last),
        *sheets.units(bars.returned),
        *sheets.rows(bars.last_errors),
        *sheets.units(bars.hidden),
        *sheets.rows(read_bar.keys, read_bar.queries),
        *read_bar[2:],
        *run.sizes,
        **run.constants(BLOCK),
    )


def walk_back(
    run: Chunks,
    found: Coefficients,
    copies: Tensor,
    made: Rewritten,
    bars: Back,
    errors_bar: Tensor,
    copies_bar: Tensor,
    held_bar: Tensor,
) -> None:
    """From the last chunk to the first; the last three, and some of `bars`, are filled."""
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


def settle(
    run: Chunks,
    found: Coefficients,
    copies: Tensor,
    made: Rewritten,
    hidden_bar: Tensor,
    copies_bar: Tensor,
    errors_bar: Tensor,
    keys_bar: Tensor,
    end_bar: EndBar,
) -> None:
    """The last three are filled, or what they have is replaced."""
    tokens, sheets = run.tokens, Sheets(run, BLOCK)
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
        *sheets.units(hidden_bar),
        sheets.matrices(copies_bar),
        *sheets.rows(keys_bar, end_bar.values),
        *end_bar[1:],
        *run.sizes,
        **run.constants(BLOCK),
    )


SPAN = 16
"""Chunks of which one program adds up the anchor's adjoints, so that few rows fill a device too."""


def through_anchor(run: Chunks, made: Rewritten, bars: Back, outputs_bar: Tensor) -> Tensor:
    """The adjoints of the anchors, in 32 bits."""
    tokens, sheets, constants = run.tokens, Sheets(run, BLOCK), run.constants(BLOCK)
    if tokens.anchors is None:
        return run.scalars()[:0]
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
