"""A memory of two matrices under the retention lq or kl, which kernels for l2 compute but for its way along a row.

They are given each chunk as a row of its own, with the base of its weights as an anchor of its own, and errors as
weights follow them; see `retained_chain`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.kernels.memory.call import Back, Chunks, EndBar, ReadBar, Rewritten, Tokens, Written
from lockstep.kernels.memory.coefficients import Coefficients, through_coefficients
from lockstep.kernels.memory.launches import sheet
from lockstep.kernels.memory.mlp import launches_for
from lockstep.kernels.memory.retained_chain import retained_chain_backward_kernel, retained_chain_kernel

WARPS = 8
"""Of a program that walks a row. Triton has products that feed others computed by both halves of them alike; four spill
three times as many registers all the same."""


class Opened(NamedTuple):
    """Each chunk's start: what of the weights follows what is held, the rest of them, and how far it follows."""

    copies: Tensor  # [rows, chunks, 2, width, hidden], in the precision of the tokens
    bases: Tensor
    scales: Tensor  # [rows, chunks, 2]

    @classmethod
    def room(cls, tokens: Tokens, chunk: int, hidden: int) -> Opened:
        rows, time, width = tokens.keys.shape
        copies, bases = (tokens.keys.new_empty(rows, time // chunk, 2, width, hidden) for _ in range(2))
        return cls(copies, bases, tokens.keep.new_empty(rows, time // chunk, 2))


class Retention(NamedTuple):
    kind: str
    q: float
    simplex: float

    def follow(self, errors: Tensor, scale: Tensor) -> Tensor:
        """Errors as weights follow them, in their own precision."""
        moving = errors - errors.mean(dim=-1, keepdim=True, dtype=torch.float32) if self.kind == "kl" else errors
        return (moving * scale[:, None, None]).to(errors.dtype)


class Walk:
    """One call: rows as they are walked along, and as they are cut into chunks."""

    def __init__(self, tokens: Tokens, opened: Opened, retention: Retention, heads: int, *setting: Any) -> None:
        """`setting` is what `Chunks` takes."""
        self.tokens, self.opened, self.retention, self.heads = tokens, opened, retention, heads
        self.rows, self.chunks, _, self.width, self.hidden = opened.copies.shape
        self.chunk = tokens.keys.shape[1] // self.chunks
        self.cut = Chunks(self.pieces(), self.rows * self.chunks, *setting, hidden=self.hidden)
        memory = {name: self.cut.memory[name] for name in ("NORM", "RESIDUAL", "BIAS", "P", "ACTIVATION")}
        sizes = {"CHUNK": self.chunk, "WIDTH": self.width, "HIDDEN": self.hidden}
        kind = {"RETENTION": retention.kind, "Q": retention.q, "SIMPLEX": retention.simplex}
        started = {"PRECISION": self.cut.closed_form["PRECISION"], "num_warps": WARPS, "num_stages": 1}
        self.constants: dict[str, Any] = memory | sizes | kind | started

    def pieces(self) -> Tokens:
        """Each chunk as a row, with all that belongs to it."""
        tokens, shape = self.tokens, (self.rows * self.chunks, self.chunk)
        queries, keys, values = (x.view(*shape, self.width) for x in tokens[:3])
        keep, rate = (x.view(shape) for x in tokens[3:5])
        threshold = None if tokens.threshold is None else tokens.threshold.view(shape)

        def lent(x: Tensor | None) -> Tensor | None:
            """[rows × chunks, width] of what heads have."""
            if x is None:
                return None
            return x[:, None].expand(-1, self.chunks, -1).repeat(self.rows // self.heads, 1, 1).flatten(0, 1)

        gain, shift, anchors = lent(tokens.gain), lent(tokens.shift), self.opened.bases.flatten(0, 1)
        return Tokens(queries, keys, values, keep, rate, None, threshold, gain, shift, anchors)

    def sheets(self, *tensors: Tensor) -> list[Any]:
        """Tokens or matrices as sheets of whole tiles."""
        return [sheet(x, *x.shape[-2:]) for x in tensors]

    def exchange(self) -> Tensor:
        return self.tokens.keep.new_empty(self.rows, 2, self.chunk, self.width)


def forward(run: Walk, held: Tensor) -> tuple[Tensor, Tensor]:
    """Reads and what is held after the last chunk; what the way back needs is in `opened`."""
    cut, opened, found = run.cut, run.opened, run.cut.coefficients()
    last, reads, wrote = held.clone(), torch.empty_like(cut.tokens.queries), Written.room(cut)
    anchors = run.tokens.anchors
    retained_chain_kernel[(run.rows,)](
        *run.sheets(cut.tokens.keys, cut.tokens.values),
        run.tokens.threshold,
        run.tokens.gain,
        run.tokens.shift,
        found.kept,
        found.end_written,
        None if anchors is None else sheet(anchors, run.width, run.hidden),
        last,
        *run.sheets(opened.copies, opened.bases),
        opened.scales,
        *run.sheets(*wrote),
        run.exchange(),
        run.heads,
        1 if anchors is None else anchors.shape[0],
        run.chunks,
        **run.constants,
    )
    launches_for(cut).read(cut, found, opened.copies, wrote, reads)
    return reads.view_as(run.tokens.queries), last


def backward(run: Walk, reads_bar: Tensor, last_bar: Tensor) -> tuple[Tensor, ...]:
    """As that of `mlp`."""
    cut, copies, found = run.cut, run.opened.copies, run.cut.coefficients()
    launch, made, bars = launches_for(cut), Rewritten.room(cut), Back.room(cut)
    lent = last_bar.new_empty(2, 2, cut.rows, 1, run.width)
    read_bar = ReadBar.room(cut, lent[0])
    launch.rewrite(cut, copies, made)
    followed = follow(run, made)
    launch.read_back(cut, found, copies, followed.written, reads_bar.view_as(cut.tokens.queries), bars, read_bar)
    errors_bar, copies_bar, held_bar, anchors_bar = walk_back(run, found, made, followed, bars, last_bar)
    end_bar = EndBar.room(cut, bars.last_errors, lent[1])
    launch.settle(cut, found, copies, followed, bars.hidden, copies_bar, errors_bar, read_bar.keys, end_bar)
    gates_bar = through_coefficients(*cut.tokens[3:6], found, read_bar[2:5], end_bar.coefficients)
    tokens_bar = (bar.view_as(run.tokens.keys) for bar in (read_bar.queries, read_bar.keys, end_bar.values))
    by_token = (bar.view_as(run.tokens.keep) for bar in (*gates_bar, end_bar.threshold))
    by_head = (part.view(2, -1, run.heads, run.chunks, run.width).sum((0, 1, 3)) for part in lent.unbind(1))
    return *tokens_bar, *by_token, *by_head, anchors_bar, held_bar


def follow(run: Walk, made: Rewritten) -> Rewritten:
    """What was written, as weights follow it."""
    by_chunk = run.opened.scales.flatten(0, 1)
    first = run.retention.follow(made.first_errors, by_chunk[:, 0])
    last = run.retention.follow(made.last_errors, by_chunk[:, 1])
    return made._replace(first_errors=first, last_errors=last)


def walk_back(
    run: Walk, found: Coefficients, made: Rewritten, followed: Rewritten, bars: Back, last_bar: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Adjoints of the last errors, of chunks' ends, of what was held first and of anchors; some of `bars` too."""
    cut, opened = run.cut, run.opened
    errors_bar, copies_bar, held_bar = cut.outputs(), torch.empty_like(opened.copies), last_bar.clone()
    anchors = run.tokens.anchors
    anchors_bar = None if anchors is None else torch.zeros_like(held_bar)
    retained_chain_backward_kernel[(run.rows,)](
        *run.sheets(*cut.tokens[:3]),
        run.tokens.threshold,
        run.tokens.gain,
        run.tokens.shift,
        found.kept,
        found.end_written,
        *run.sheets(opened.copies, opened.bases),
        opened.scales,
        *run.sheets(made.inputs, made.slopes, made.bends, made.last_errors),
        *run.sheets(followed.first_errors, followed.last_errors, made.normals),
        made.scales,
        *run.sheets(*bars, errors_bar, copies_bar),
        held_bar,
        anchors_bar,
        run.exchange(),
        run.heads,
        run.chunks,
        **run.constants,
    )
    if anchors is None or anchors_bar is None:
        return errors_bar, copies_bar, held_bar, held_bar.new_empty(0)
    return errors_bar, copies_bar, held_bar, anchors_bar.view(-1, *anchors.shape).sum(0)
