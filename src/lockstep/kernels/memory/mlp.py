"""A memory of two matrices with an activation between them: whole chunks as one operator, by Triton.

Forward: the coefficients of each chunk, the memory's way from chunk to chunk, and then all reads at once. Backward: the
adjoints of all reads at once, the way back from chunk to chunk, the gates. What is kept between the two is the memory
at each chunk's start, in the precision of the tokens; everything else is computed again.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from lockstep.kernels.memory import hopper, launches
from lockstep.kernels.memory.call import Back, Chunks, EndBar, ReadBar, Rewritten, Written
from lockstep.kernels.memory.coefficients import through_coefficients


def launches_for(run: Chunks) -> ModuleType:
    return hopper if hopper.suited(run) else launches


def forward(run: Chunks, held: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reads, the memory after the last chunk, and the copies of it that the way back needs."""
    launch, found = launches_for(run), run.coefficients()
    last, reads = held.clone(), torch.empty_like(run.tokens.queries)
    copies, wrote = run.room(run.chunks, run.parts, run.width, run.hidden), Written.room(run)
    launch.walk(run, found, last, copies, wrote)
    launch.read(run, found, copies, wrote, reads)
    return reads, last, copies


def backward(run: Chunks, copies: Tensor, reads_bar: Tensor, last_bar: Tensor) -> tuple[Tensor, ...]:
    """Adjoints of what `Tokens` has, in its order, and of the first memory; those of absent ones mean nothing."""
    launch, found = launches_for(run), run.coefficients()
    made, bars = Rewritten.room(run), Back.room(run)
    errors_bar, copies_bar, held_bar = run.outputs(), torch.empty_like(copies), last_bar.clone()
    # Of gain and shift, by the reads and by the writes: sums of both are taken at once.
    lent = held_bar.new_empty(2, 2, run.rows, run.chunks, run.width)
    read_bar = ReadBar.room(run, lent[0])
    launch.rewrite(run, copies, made)
    launch.read_back(run, found, copies, made.written, reads_bar, bars, read_bar)
    launch.walk_back(run, found, copies, made, bars, errors_bar, copies_bar, held_bar)
    end_bar = EndBar.room(run, bars.last_errors, lent[1])
    launch.settle(run, found, copies, made, bars.hidden, copies_bar, errors_bar, read_bar.keys, end_bar)
    gates_bar = through_coefficients(*run.tokens[3:6], found, read_bar[2:5], end_bar.coefficients)
    lent_bar = (part.unflatten(1, (-1, run.heads)).sum((0, 1, 3)) for part in lent.unbind(1))
    anchors_bar = launches.through_anchor(run, made, bars, errors_bar)
    tokens_bar = read_bar.queries, read_bar.keys, end_bar.values, *gates_bar, end_bar.threshold
    return *tokens_bar, *lent_bar, anchors_bar, held_bar
