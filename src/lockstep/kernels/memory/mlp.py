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

from lockstep.kernels.memory.chain import chain_backward_kernel, chain_kernel
from lockstep.kernels.memory.coefficients import coefficients_backward_kernel, coefficients_kernel
from lockstep.kernels.memory.reading import read_backward_kernel, read_kernel
from lockstep.kernels.memory.settling import anchor_kernel, settle_kernel
from lockstep.kernels.memory.writing import rewrite_kernel

CHAIN_BLOCK = 512 if triton.knobs.runtime.interpret else 128
"""Hidden units of a program that walks a row, 16 to a warp. Interpreted programs run one after the other: none can wait
for another, so that one must do."""
BLOCK = 64
"""Hidden units that a program for one chunk takes at a time."""


class Coefficients(NamedTuple):
    """Of all chunks, as `lockstep.memory.coefficients` has them; [rows, time] but for the second last dimension of C."""

    kept: Tensor
    carried: Tensor
    written: Tensor  # [rows, time, chunk]
    end_written: Tensor
    end_velocity_kept: Tensor
    end_velocity_written: Tensor

    @property
    def ends(self) -> tuple[Tensor, ...]:
        """What the memory's way needs."""
        return self.kept, self.carried, *self[3:]


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
    anchors: Tensor | None  # [rows or heads, 2, …]


class Chunks:
    """One call: shapes, constants, and room for what the kernels leave to each other."""

    def __init__(
        self, tokens: Tokens, heads: int, chunk: int, residual: bool, norm: bool, bias: str, p: float, activation: str
    ) -> None:
        self.tokens, self.heads = tokens, heads
        self.rows, self.time, self.width = tokens.keys.shape
        self.chunk, self.chunks = chunk, self.time // chunk
        self.norm, self.residual, self.bias, self.p, self.activation = norm, residual, bias, p, activation
        self.parts = 2 if tokens.momentum is None else 4

    def constants(self, hidden: int, largest: int) -> dict[str, Any]:
        """Of kernels that take `largest` hidden units at a time, or all of them if they are fewer."""
        block = min(hidden, largest)
        return self.closed_form | {
            "WIDTH": self.width,
            "BLOCK": block,
            "SPLIT": hidden // block,
            "ANCHOR": self.tokens.anchors is not None,
            "NORM": self.norm,
            "RESIDUAL": self.residual,
            "BIAS": self.bias,
            "P": self.p,
            "ACTIVATION": self.activation,
            "num_warps": 8 if block >= 128 else 4,
            "num_stages": 1,
        }

    @property
    def closed_form(self) -> dict[str, Any]:
        exact = self.tokens.keys.dtype == torch.float32
        return {
            "CHUNK": self.chunk,
            "MOMENTUM": self.tokens.momentum is not None,
            # Three passes of the matrix units give 32-bit operands nearly all of their 32 bits.
            "PRECISION": "tf32x3" if exact else "tf32",
        }

    @property
    def sizes(self) -> tuple[int, int, int]:
        anchors = self.tokens.anchors
        return self.heads, 1 if anchors is None else anchors.shape[0], self.chunks

    def room(self, *shape: int) -> Tensor:
        """[rows, …] in the tokens' precision."""
        return self.tokens.keys.new_empty(self.rows, *shape)

    def tiles(self, width: int) -> Tensor:
        """[rows, chunks, width, chunk], as kernels leave rows of tokens to each other."""
        return self.room(self.chunks, width, self.chunk)

    def scalars(self, *shape: int) -> Tensor:
        """[rows, …] in 32 bits."""
        return self.tokens.keys.new_empty(self.rows, *shape, dtype=torch.float32)

    def meeting(self, split: int) -> tuple[Tensor, Tensor]:
        """Where programs of a row add up what they found."""
        return self.scalars(2, split, self.width, self.chunk), self.scalars().zero_().int()

    def coefficients(self) -> Coefficients:
        tokens, vectors = self.tokens, [self.scalars(self.time) for _ in range(5)]
        found = Coefficients(*vectors[:2], self.room(self.time, self.chunk), *vectors[2:])
        coefficients_kernel[(self.rows * self.chunks,)](
            tokens.keep, tokens.rate, tokens.momentum, *found, **self.closed_form
        )
        return found


def forward(run: Chunks, held: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reads, the memory after the last chunk, and the copies of it that the way back needs."""
    tokens, found = run.tokens, run.coefficients()
    hidden = held.shape[-1] // run.width
    last, copies = held.clone(), run.room(run.chunks, run.parts, held.shape[-1])
    made = run.tiles(hidden), run.tiles(hidden), run.tiles(run.width)
    chain, constants = run.constants(hidden, CHAIN_BLOCK), run.constants(hidden, BLOCK)
    chain_kernel[(run.rows * chain["SPLIT"],)](
        tokens.keys,
        tokens.values,
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        *found.ends,
        tokens.anchors,
        last,
        copies,
        *made,
        *run.meeting(chain["SPLIT"]),
        *run.sizes,
        **chain,
    )
    reads = torch.empty_like(tokens.queries)
    read_kernel[(run.rows * run.chunks,)](
        tokens.queries,
        tokens.keys,
        tokens.gain,
        tokens.shift,
        *found[:3],
        tokens.anchors,
        copies,
        *made,
        reads,
        *run.sizes,
        **constants,
    )
    return reads, last, copies


def backward(run: Chunks, copies: Tensor, reads_bar: Tensor, last_bar: Tensor) -> tuple[Tensor, ...]:
    """Adjoints of queries, keys, values, keep, rate, momentum, threshold, gain, shift, anchors and the first memory."""
    tokens, found = run.tokens, run.coefficients()
    hidden = copies.shape[-1] // run.width
    chain, constants = run.constants(hidden, CHAIN_BLOCK), run.constants(hidden, BLOCK)

    def deep() -> Tensor:
        return run.tiles(hidden)

    def narrow() -> Tensor:
        return run.tiles(run.width)

    inputs, slopes, bends, first_errors = deep(), deep(), deep(), deep()
    last_errors, normals, scales = narrow(), narrow(), run.scalars(run.time)
    read_inputs, read_outputs_bar, read_last_bar = deep(), deep(), narrow()
    lent = (tokens.threshold, tokens.gain, tokens.shift)
    rewrite_kernel[(run.rows * run.chunks,)](
        *tokens[1:3],
        *lent,
        tokens.anchors,
        copies,
        inputs,
        slopes,
        bends,
        first_errors,
        last_errors,
        normals,
        scales,
        *run.sizes,
        **constants,
    )
    # By the reads, and then replaced by the adjoints of what comes before.
    returned_bar, last_errors_bar, hidden_bar = deep(), narrow(), deep()
    queries_bar, keys_bar, values_bar = (torch.empty_like(tokens.keys) for _ in range(3))
    kept_bar, carried_bar, written_bar = run.scalars(run.time), run.scalars(run.time), run.room(run.time, run.chunk)
    gains_bar, shifts_bar = run.scalars(run.chunks, run.width), run.scalars(run.chunks, run.width)
    read_backward_kernel[(run.rows * run.chunks,)](
        *tokens[:2],
        reads_bar,
        tokens.gain,
        tokens.shift,
        *found[:3],
        tokens.anchors,
        copies,
        inputs,
        first_errors,
        last_errors,
        read_inputs,
        read_outputs_bar,
        read_last_bar,
        returned_bar,
        last_errors_bar,
        hidden_bar,
        keys_bar,
        queries_bar,
        kept_bar,
        carried_bar,
        written_bar,
        gains_bar,
        shifts_bar,
        *run.sizes,
        **constants,
    )
    errors_bar, copies_bar, held_bar = narrow(), torch.empty_like(copies), last_bar.clone()
    chain_backward_kernel[(run.rows * chain["SPLIT"],)](
        *tokens[:3],
        *lent,
        *found.ends,
        tokens.anchors,
        copies,
        inputs,
        slopes,
        bends,
        last_errors,
        normals,
        scales,
        read_inputs,
        read_outputs_bar,
        read_last_bar,
        returned_bar,
        last_errors_bar,
        hidden_bar,
        errors_bar,
        copies_bar,
        held_bar,
        *run.meeting(chain["SPLIT"]),
        *run.sizes,
        **chain,
    )
    end_kept_bar, end_carried_bar, end_velocity_kept_bar = (run.scalars(run.chunks) for _ in range(3))
    end_written_bar, end_velocity_written_bar = run.scalars(run.time), run.scalars(run.time)
    ends_bar = (end_kept_bar, end_carried_bar, end_written_bar, end_velocity_kept_bar, end_velocity_written_bar)
    threshold_bar = run.scalars(run.time)
    gain_bar, shift_bar = run.scalars(run.chunks, run.width), run.scalars(run.chunks, run.width)
    settle_kernel[(run.rows * run.chunks,)](
        *tokens[1:3],
        *lent,
        found.end_written,
        found.end_velocity_written,
        tokens.anchors,
        copies,
        inputs,
        first_errors,
        last_errors,
        normals,
        scales,
        errors_bar,
        hidden_bar,
        copies_bar,
        keys_bar,
        values_bar,
        threshold_bar,
        gain_bar,
        shift_bar,
        *ends_bar,
        *run.sizes,
        **constants,
    )
    keep_bar, rate_bar, momentum_bar = (run.scalars(run.time) for _ in range(3))
    coefficients_backward_kernel[(run.rows * run.chunks,)](
        tokens.keep,
        tokens.rate,
        tokens.momentum,
        kept_bar,
        carried_bar,
        written_bar,
        *ends_bar,
        keep_bar,
        rate_bar,
        momentum_bar,
        **run.closed_form,
    )
    anchors_bar = held_bar.new_empty(0)
    if tokens.anchors is not None:
        # Few rows fill a device too: a program adds up some chunks, and the rest is done here.
        span = math.gcd(run.chunks, SPAN)
        sums = held_bar.new_empty(run.rows * run.chunks // span, 2, hidden * run.width)
        anchor_kernel[(sums.shape[0] * constants["SPLIT"],)](
            *tokens[:2],
            inputs,
            last_errors,
            read_inputs,
            read_outputs_bar,
            read_last_bar,
            returned_bar,
            errors_bar,
            hidden_bar,
            sums,
            span,
            **{name: constants[name] for name in ("CHUNK", "WIDTH", "BLOCK", "SPLIT", "PRECISION", "num_warps")},
            num_stages=2,
        )
        by_row = sums.unflatten(0, (run.rows, -1)).sum(1)
        anchors_bar = by_row.unflatten(0, (-1, tokens.anchors.shape[0])).sum(0)
    gain_bar = (gain_bar + gains_bar).sum(1).unflatten(0, (-1, run.heads)).sum(0)
    shift_bar = (shift_bar + shifts_bar).sum(1).unflatten(0, (-1, run.heads)).sum(0)
    rows = (queries_bar, keys_bar, values_bar, keep_bar, rate_bar, momentum_bar, threshold_bar)
    return *rows, gain_bar, shift_bar, anchors_bar, held_bar


SPAN = 16
"""Chunks that one program adds up."""
