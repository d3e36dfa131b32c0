"""A run of chunks as one differentiable operation.

Its derivative is written out (`adjoint`): that keeps the memory at some chunks' starts and a few rows per token, where
automatic differentiation would keep every intermediate of every chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.memory.adjoint import adjoint
from lockstep.memory.derivatives import only_first
from lockstep.memory.reading import Part, Shares
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import Affine
from lockstep.memory.trace import Ends, Given, Trace, run
from lockstep.memory.types import Memory, Weights, exactly

SHOWN = 4
"""Chunks that a compiler may see as one graph: it takes seconds for each, and minutes for a long text."""


def chain(given: Given, spec: MemorySpec) -> tuple[Tensor, Memory]:
    """What the network says to the queries, [chunks, rows, time, out], and the memory after the last chunk."""
    there = (given.memory.velocity is not None, given.anchor is not None, given.point is not None)
    layout = Layout(spec.layers, *there)
    aside = torch.compiler.is_compiling() and given.keys.shape[0] > SHOWN
    said, *last = (_uncompiled if aside else _run)(spec, layout, *layout.flat(given))
    weights, velocity = tuple(last[: spec.layers]), tuple(last[spec.layers :])
    return said, Memory(weights, velocity or None)


class Layout(NamedTuple):
    """How the tensors of a run stand in a row, as torch wants them."""

    layers: int
    velocity: bool
    anchor: bool
    point: bool

    def flat(self, given: Given) -> tuple[Part, ...]:
        memory = (*given.memory.weights, *(given.memory.velocity or ()), *(given.anchor or ()), *(given.point or ()))
        rows = (given.queries, given.keys, given.values, given.threshold)
        return (*rows, *given.affine, *given.shares, *given.ends, *memory)

    def given(self, parts: Iterator[Any]) -> Given:
        """The inverse of `flat`."""
        queries, keys, values, threshold, gain, shift, *coefficients = (next(parts) for _ in range(14))
        shares, ends = Shares(*coefficients[:3]), Ends(*coefficients[3:])
        memory = Memory(self.group(parts), self.group(parts) if self.velocity else None)
        anchor = self.group(parts) if self.anchor else None
        point = self.group(parts) if self.point else None
        return Given(queries, keys, values, threshold, Affine(gain, shift), shares, ends, memory, anchor, point)

    def group(self, parts: Iterator[Any]) -> Weights:
        """One tensor per matrix."""
        return tuple(next(parts) for _ in range(self.layers))


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spec: MemorySpec, layout: Layout, *flat: Any) -> tuple[Tensor, ...]:
        trace, memory = run(layout.given(iter(flat)), spec)
        ctx.spec, ctx.layout = spec, layout
        ctx.set_materialize_grads(False)
        # The last reads are what was said: nothing of the derivative needs them.
        hidden = (*trace.outputs, trace.last_errors, *trace.reads[:-1])
        ctx.save_for_backward(*flat, *hidden, *trace.held, *trace.velocity)
        return (trace.reads[-1], *memory.weights, *(memory.velocity or ()))

    @staticmethod
    @only_first
    def backward(ctx: Any, said_bar: Part, *last_bar: Part) -> tuple[Any, ...]:
        layout: Layout = ctx.layout
        saved = iter(ctx.saved_tensors)
        given = layout.given(saved)

        def stacks(count: int) -> list[Tensor]:
            return [next(saved) for _ in range(count)]

        count = layout.layers
        outputs, last_errors, reads = stacks(count), next(saved), stacks(count - 1)
        held, velocity = stacks(count), stacks(count if layout.velocity else 0)
        trace = Trace(held, velocity, outputs, last_errors, reads)
        with exactly(given.keys.device):
            bars = adjoint(given, trace, said_bar, last_bar, ctx.spec)
        return (None, None, *layout.flat(bars))


def _run(spec: MemorySpec, layout: Layout, *flat: Part) -> tuple[Tensor, ...]:
    return _Chain.apply(spec, layout, *flat)  # type: ignore[no-any-return, no-untyped-call] # torch leaves apply untyped


@torch.compiler.disable  # type: ignore[untyped-decorator] # torch leaves it untyped
def _uncompiled(spec: MemorySpec, layout: Layout, *flat: Part) -> tuple[Tensor, ...]:
    return _run(spec, layout, *flat)
