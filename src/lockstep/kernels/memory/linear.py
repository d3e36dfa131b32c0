"""A memory of one matrix: whole chunks, or whole tiles where there is a gradient at every token, by Triton.

Forward: the closed form of each chunk, the memory's way from chunk to chunk, and then all reads at once. Backward: the
adjoints of all reads at once, the way back from chunk to chunk, and all that is left at once. What is kept between the
two is the memory at each chunk's start and the errors, both in the precision of the tokens.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.kernels.memory.coefficients import Coefficients, coefficients, through_coefficients
from lockstep.kernels.memory.linear_chain import linear_chain_backward_kernel, linear_chain_kernel
from lockstep.kernels.memory.linear_reading import linear_read_backward_kernel, linear_read_kernel
from lockstep.kernels.memory.linear_settling import (
    linear_anchor_kernel,
    linear_settle_kernel,
    through_head_kernel,
    through_solution_kernel,
)
from lockstep.kernels.memory.linear_writing import restate_kernel, solve_kernel

PROGRAMS = 128
"""About as many as run side by side on a large device: rows are split among programs up to here."""
NARROWEST = 32
"""Outputs of such a program."""
SPAN = 16
"""Chunks that one program adds up."""
LARGEST = 8192
"""Bytes of a tile, where several chunks are fetched ahead."""
JOINED = ("norm", "switch")
"""Inner losses that look at all outputs of a token."""


class Tokens(NamedTuple):
    """What is written and read, gates [rows, time], and what the outer model lends."""

    queries: Tensor  # [rows, time, width]
    keys: Tensor
    values: Tensor  # [rows, time, out]
    keep: Tensor
    rate: Tensor
    momentum: Tensor | None
    threshold: Tensor | None
    gain: Tensor | None  # [heads, out]
    shift: Tensor | None
    anchor: Tensor | None  # [rows or heads, out, width]


class Solved(NamedTuple):
    """What `solve_kernel` leaves; all None where errors need no system."""

    inverse: Tensor | None = None  # [rows, chunks, chunk, chunk]
    kept_keys: Tensor | None = None  # [rows, chunks, width, chunk]
    carried_keys: Tensor | None = None
    targets: Tensor | None = None  # [rows, chunks, out, chunk]


class Chunks:
    """One call: shapes, constants, and room for what the kernels leave to each other.

    With `exact` there is a gradient at every token, and chunks are only what is computed at once.
    """

    def __init__(
        self, tokens: Tokens, heads: int, chunk: int, exact: bool, residual: bool, norm: bool, bias: str, p: float
    ) -> None:
        if tokens.anchor is not None:
            # An operand of products, as the tokens are.
            tokens = tokens._replace(anchor=tokens.anchor.to(tokens.keys.dtype).contiguous())
        self.tokens, self.heads, self.chunk = tokens, heads, chunk
        self.rows, self.time, self.out = tokens.values.shape
        self.width, self.chunks = tokens.keys.shape[-1], self.time // chunk
        self.errors = "given" if bias == "dot" else "solved" if exact else "head"
        self.curved = self.errors == "head" and (norm or bias != "l2")
        self.separate = self.errors != "head" or not (norm or bias in JOINED)
        self.closed_form: dict[str, Any] = {
            "CHUNK": chunk,
            "MOMENTUM": tokens.momentum is not None,
            # Three passes of the matrix units give 32-bit operands nearly all of their 32 bits.
            "PRECISION": "tf32x3" if tokens.keys.dtype == torch.float32 else "tf32",
        }
        self.memory: dict[str, Any] = {
            "OUT": self.out,
            "ERRORS": self.errors,
            "ANCHOR": tokens.anchor is not None,
            "NORM": norm,
            "RESIDUAL": residual,
            "BIAS": bias,
            "P": p,
        }

    def constants(self, *names: str) -> dict[str, Any]:
        """Of a kernel: those of the closed form, and these."""
        chosen = {name: self.memory[name] for name in names}
        warps = 4 if max(self.chunk, self.width, self.out) <= 64 else 8
        return self.closed_form | chosen | {"WIDTH": self.width, "num_warps": warps, "num_stages": 1}

    def stages(self, wanted: int) -> int:
        """Chunks whose tiles are on their way at once, if all of these fit."""
        largest = max(self.chunk, self.width, self.out) ** 2 * self.tokens.keys.element_size()
        return wanted if largest <= LARGEST else 1

    @property
    def chain(self) -> dict[str, Any]:
        """Constants of the way from chunk to chunk; few rows are split among more programs."""
        split = 1
        while self.separate and self.rows * split * 2 <= PROGRAMS and self.out // split > NARROWEST:
            split *= 2
        chosen = self.constants("ERRORS", "NORM", "RESIDUAL", "BIAS", "P")
        return chosen | {"BLOCK": self.out // split, "SPLIT": split}

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Heads, rows of the anchor, chunks."""
        anchor = self.tokens.anchor
        return self.heads, 1 if anchor is None else anchor.shape[0], self.chunks

    def tiles(self, width: int) -> Tensor:
        """[rows, chunks, width, chunk] in the tokens' precision, as kernels leave rows of tokens to each other."""
        return self.tokens.keys.new_empty(self.rows, self.chunks, width, self.chunk)

    def scalars(self, *shape: int) -> Tensor:
        """[rows, …] in 32 bits."""
        return self.tokens.keys.new_empty(self.rows, *shape, dtype=torch.float32)

    def coefficients(self) -> Coefficients:
        return coefficients(*self.tokens[3:6], self.tiles(self.chunk).flatten(1, 2))

    @property
    def grid(self) -> tuple[int]:
        return (self.rows * self.chunks,)

    def solved(self, found: Coefficients) -> Solved:
        """The tiles' triangular systems."""
        if self.errors != "solved":
            return Solved()
        tokens = self.tokens
        made = Solved(
            self.scalars(self.chunks, self.chunk, self.chunk),
            self.tiles(self.width),
            self.tiles(self.width) if tokens.momentum is not None else None,
            self.tiles(self.out),
        )
        solve_kernel[self.grid](
            tokens.keys,
            tokens.values,
            *found[:3],
            tokens.anchor,
            *made,
            *self.sizes[1:],
            **self.constants("OUT", "ANCHOR", "RESIDUAL"),
        )
        return made


def forward(run: Chunks, held: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reads, the memory after the last chunk, and its copies and the errors, which the way back needs."""
    tokens, found = run.tokens, run.coefficients()
    solved, chain = run.solved(found), run.chain
    last, errors = held.clone(), run.tiles(run.out)
    copies = tokens.keys.new_empty(run.rows, run.chunks, *held.shape[1:])
    linear_chain_kernel[(run.rows * chain["SPLIT"],)](
        *tokens[1:3],
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        *found.ends,
        tokens.anchor,
        *solved[1:],
        last,
        copies,
        errors,
        *run.sizes,
        ANCHOR=tokens.anchor is not None,
        **chain | {"num_stages": run.stages(3)},
    )
    reads = torch.empty_like(tokens.values)
    linear_read_kernel[run.grid](
        *tokens[:2],
        tokens.gain,
        tokens.shift,
        *found[:3],
        tokens.anchor,
        copies,
        errors,
        reads,
        *run.sizes,
        **run.constants("OUT", "ANCHOR", "NORM", "RESIDUAL"),
    )
    return reads, last, copies, errors


class Bars(NamedTuple):
    """Adjoints on their way: of tokens, coefficients, errors, and what the outer model lends."""

    outputs: Tensor  # [rows, chunks, out, chunk]: of reads, before the norm
    errors: Tensor  # [rows, chunks, out, chunk]; later of what the memory said to keys
    queries: Tensor
    keys: Tensor
    kept: Tensor
    carried: Tensor
    written: Tensor  # [rows, chunks, chunk, chunk]
    gain: Tensor  # [rows, chunks, out]
    shift: Tensor


def through_reads(run: Chunks, found: Coefficients, copies: Tensor, errors: Tensor, reads_bar: Tensor) -> Bars:
    """Back over what was read, all chunks at once."""
    tokens = run.tokens
    bars = Bars(
        run.tiles(run.out),
        run.tiles(run.out),
        torch.empty_like(tokens.queries),
        torch.empty_like(tokens.keys),
        run.scalars(run.time),
        run.scalars(run.time),
        run.tiles(run.chunk),
        run.scalars(run.chunks, run.out),
        run.scalars(run.chunks, run.out),
    )
    linear_read_backward_kernel[run.grid](
        *tokens[:2],
        reads_bar,
        tokens.gain,
        *found[:3],
        tokens.anchor,
        copies,
        errors,
        *bars,
        *run.sizes,
        **run.constants("OUT", "ANCHOR", "NORM", "RESIDUAL"),
    )
    return bars


def restated(run: Chunks, copies: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What the memory said to keys, where the adjoints of errors depend on it, and the norm's scales."""
    if not run.curved:
        return None, None
    normals, scales = run.tiles(run.out), run.scalars(run.time)
    restate_kernel[run.grid](
        run.tokens.keys,
        run.tokens.anchor,
        copies,
        normals,
        scales,
        *run.sizes[1:],
        **run.constants("OUT", "ANCHOR", "NORM"),
    )
    return normals, scales


def through_errors(
    run: Chunks,
    found: Coefficients,
    solved: Solved,
    stated: tuple[Tensor | None, Tensor | None],
    copies: Tensor,
    errors: Tensor,
    bars: Bars,
) -> tuple[Tensor, Tensor]:
    """Back over the errors to keys, gates, gain and shift, in `bars`; adjoints of the values and of the threshold."""
    tokens, threshold_bar = run.tokens, run.scalars(run.time)
    if run.errors == "given":
        return -bars.errors.mT.flatten(1, 2), threshold_bar
    values_bar = torch.empty_like(tokens.values)
    if run.errors == "solved":
        through_solution_kernel[run.grid](
            tokens.keys,
            *found[:3],
            tokens.anchor,
            copies,
            errors,
            solved.inverse,
            bars.errors,
            bars.keys,
            values_bar,
            bars.kept,
            bars.carried,
            bars.written,
            *run.sizes[1:],
            **run.constants("OUT", "ANCHOR", "RESIDUAL"),
        )
    else:
        through_head_kernel[run.grid](
            *tokens[1:3],
            tokens.threshold,
            tokens.gain,
            tokens.shift,
            tokens.anchor,
            copies,
            *stated,
            bars.errors,
            bars.keys,
            values_bar,
            threshold_bar,
            bars.gain,
            bars.shift,
            *run.sizes,
            **run.constants("OUT", "ANCHOR", "NORM", "RESIDUAL", "BIAS", "P"),
        )
    return values_bar, threshold_bar


def through_anchors(run: Chunks, bars: Bars) -> Tensor:
    """The adjoint of the anchors, but for what the memory's distance from them says."""
    tokens = run.tokens
    if tokens.anchor is None:
        return run.scalars()[:0]
    # Few rows fill a device too: a program adds up some chunks, and the rest is done here.
    span = math.gcd(run.chunks, SPAN)
    sums = tokens.keys.new_empty(run.rows * run.chunks // span, run.out, run.width, dtype=torch.float32)
    constants = run.constants("OUT", "ERRORS")
    del constants["MOMENTUM"]
    linear_anchor_kernel[(sums.shape[0],)](*tokens[:2], bars.outputs, bars.errors, sums, span, **constants)
    by_row = sums.unflatten(0, (run.rows, -1)).sum(1)
    anchors_bar: Tensor = by_row.unflatten(0, (-1, tokens.anchor.shape[0])).sum(0)
    return anchors_bar


def backward(run: Chunks, copies: Tensor, errors: Tensor, reads_bar: Tensor, last_bar: Tensor) -> tuple[Tensor, ...]:
    """Adjoints of queries, keys, values, keep, rate, momentum, threshold, gain, shift, anchors and the first memory."""
    tokens, found = run.tokens, run.coefficients()
    solved, stated, chain = run.solved(found), restated(run, copies), run.chain
    bars = through_reads(run, found, copies, errors, reads_bar)
    copies_bar, held_bar = torch.empty_like(copies), last_bar.clone()
    linear_chain_backward_kernel[(run.rows * chain["SPLIT"],)](
        *tokens[:3],
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        *found.ends,
        *solved[1:3],
        *stated,
        bars.outputs,
        bars.errors,
        copies_bar,
        held_bar,
        run.heads,
        run.chunks,
        # What is curved is read where it was just written: nothing may be fetched ahead.
        **chain | {"num_stages": 1 if run.curved else run.stages(2)},
    )
    ends_bar = (
        run.scalars(run.chunks),
        run.scalars(run.chunks),
        run.scalars(run.time),
        run.scalars(run.chunks),
        run.scalars(run.time),
    )
    linear_settle_kernel[run.grid](
        tokens.keys,
        found.end_written,
        found.end_velocity_written,
        copies,
        errors,
        copies_bar,
        bars.keys,
        *ends_bar,
        **run.constants("OUT"),
    )
    values_bar, threshold_bar = through_errors(run, found, solved, stated, copies, errors, bars)
    gates_bar = through_coefficients(*tokens[3:6], found, bars[4:7], ends_bar)
    lent_bar = (x.sum(1).unflatten(0, (-1, run.heads)).sum(0) for x in (bars.gain, bars.shift))
    rows = (bars.queries, bars.keys, values_bar, *gates_bar, threshold_bar)
    return *rows, *lent_bar, through_anchors(run, bars), held_bar
