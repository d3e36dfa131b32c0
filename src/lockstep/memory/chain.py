"""The chain of chunks as one differentiable operation.

Its derivative is written out (`adjoint`): that keeps one copy of what each chunk begins with and a few rows per token,
where automatic differentiation would keep every intermediate of every chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.memory.adjoint import Received, adjoint
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import Affine
from lockstep.memory.trace import Ends, Given, Part, Trace, run
from lockstep.memory.types import Memory, Weights


class Layer(NamedTuple):
    """What all chunks leave behind in one matrix, [chunks, rows, …]."""

    held: Tensor  # [.., in, out], at each chunk's start
    velocity: Part
    inputs: Tensor  # [.., time, in], what the keys fed to it
    errors: Tensor  # [.., time, out], the gradients at its outputs


def chain(given: Given, spec: MemorySpec) -> tuple[list[Layer], Memory]:
    """Run all chunks: what they leave behind, and the memory after the last."""
    layout = Layout(spec.layers, given.memory.velocity is not None, given.anchor is not None, given.point is not None)
    found = iter(_Chain.apply(spec, layout, *layout.flat(given)))  # type: ignore[no-untyped-call] # torch leaves apply untyped
    held, velocity, inputs, errors, weights, last = (layout.group(found) for _ in range(6))
    inputs = (given.keys, *inputs[1:])
    layers = [Layer(*parts) for parts in zip(held, velocity, inputs, errors, strict=True)]
    return layers, Memory(weights, last if layout.velocity else None)


class Layout(NamedTuple):
    """How the tensors of a chain stand in a row, as torch wants them."""

    layers: int
    velocity: bool
    anchor: bool
    point: bool

    def flat(self, given: Given) -> tuple[Part, ...]:
        memory = (*given.memory.weights, *(given.memory.velocity or ()), *(given.anchor or ()), *(given.point or ()))
        return (given.keys, given.values, given.threshold, *given.affine, *given.ends, *memory)

    def given(self, parts: Iterator[Any]) -> Given:
        """The inverse of `flat`."""
        keys, values, threshold, gain, shift = (next(parts) for _ in range(5))
        ends = Ends(*(next(parts) for _ in range(5)))
        weights = self.group(parts)
        velocity, anchor, point = (
            self.group(parts) if there else None for there in (self.velocity, self.anchor, self.point)
        )
        return Given(keys, values, threshold, Affine(gain, shift), ends, Memory(weights, velocity), anchor, point)

    def group(self, parts: Iterator[Any]) -> Weights:
        """One tensor per matrix."""
        return tuple(next(parts) for _ in range(self.layers))


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spec: MemorySpec, layout: Layout, *flat: Part) -> tuple[Part, ...]:
        trace, memory = run(layout.given(iter(flat)), spec)
        ctx.spec, ctx.layout = spec, layout
        ctx.set_materialize_grads(False)
        stacks = (*trace.held, *trace.velocity, *trace.outputs, *trace.inputs[1:], *trace.errors, *trace.returned[1:])
        ctx.save_for_backward(*flat, *stacks)
        absent = (None,) * layout.layers
        inputs = (None, *trace.inputs[1:])
        return (
            *trace.held,
            *(trace.velocity or absent),
            *inputs,
            *trace.errors,
            *memory.weights,
            *(memory.velocity or absent),
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Part) -> tuple[Any, ...]:
        layout: Layout = ctx.layout
        saved = iter(ctx.saved_tensors)
        given = layout.given(saved)

        def rest(first: Tensor) -> list[Tensor]:
            return [first, *(next(saved) for _ in range(layout.layers - 1))]

        trace = Trace(
            held=list(layout.group(saved)),
            velocity=list(layout.group(saved)) if layout.velocity else [],
            outputs=list(layout.group(saved)),
            inputs=rest(given.keys),
            errors=list(layout.group(saved)),
            returned=rest(given.keys),
        )
        received = iter(gradients)
        return (
            None,
            None,
            *layout.flat(adjoint(given, trace, Received(*(layout.group(received) for _ in range(6))), ctx.spec)),
        )
