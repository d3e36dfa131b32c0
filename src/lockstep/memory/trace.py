"""What must go chunk by chunk: the gradients at a chunk's start, and the memory that they lead to.

With x, z, e a matrix's inputs, outputs and errors (the loss's gradients at its outputs), u the errors before the
activation's slope, and b, f, c, h, g the coefficients at the chunk's last token:

    z_l = x_l W_l   x_(l+1) = act(z_l)   e_L = head(z_L)   u_(l+1) = e_(l+1) W_(l+1)ᵀ   e_l = u_(l+1) * act'(z_l)
    W' = b W + (1 - b) anchor + f S - xᵀ(c.e)   S' = h S - xᵀ(g.e)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.memory.activations import activate, slope
from lockstep.memory.retentions import Retained
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import Affine, last_error
from lockstep.memory.types import Memory, Weights

Part = Tensor | None


class Ends(NamedTuple):
    """The coefficients at each chunk's last token; the velocity's are None without momentum."""

    kept: Tensor  # b [chunks, rows, 1, 1]
    written: Tensor  # c [chunks, rows, time, 1]
    carried: Part = None  # f [chunks, rows, 1, 1]
    velocity_kept: Part = None  # h [chunks, rows, 1, 1]
    velocity_written: Part = None  # g [chunks, rows, time, 1]


class Given(NamedTuple):
    """What a chain is run on; tensors [chunks, rows, time, dim], weights [rows, in, out]."""

    keys: Tensor
    values: Tensor
    threshold: Part  # [chunks, rows, time]
    affine: Affine
    ends: Ends
    memory: Memory
    anchor: Weights | None  # where forgetting leads; None is zero
    point: Weights | None  # what the first chunk's gradients are taken at, where that is not the memory itself


@dataclass
class Trace:
    """What the chunks leave behind, one stack [chunks, rows, …] per matrix."""

    held: list[Tensor] = field(default_factory=list)  # at each chunk's start
    velocity: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)  # z
    inputs: list[Tensor] = field(default_factory=list)  # x; the first are the keys
    errors: list[Tensor] = field(default_factory=list)  # e
    returned: list[Tensor] = field(default_factory=list)  # u, at the inputs; the first are the keys, for want of any


def run(given: Given, spec: MemorySpec) -> tuple[Trace, Memory]:
    """All chunks, one after the other."""
    trace = allocated(given)
    memory = given.memory
    for i in range(given.keys.shape[0]):
        for layer, matrix in enumerate(memory.weights):
            trace.held[layer][i] = matrix
        for layer, matrix in enumerate(memory.velocity or ()):
            trace.velocity[layer][i] = matrix
        point = given.point if i == 0 and given.point is not None else memory.weights
        write(i, effective(point, spec), given, trace, spec)
        memory = advanced(i, memory, given, trace)
    return trace, memory


def allocated(given: Given) -> Trace:
    keys, weights = given.keys, given.memory.weights
    (chunks, rows, time), widths = keys.shape[:3], [matrix.shape[1:] for matrix in weights]

    def room(*shape: int) -> Tensor:
        return keys.new_empty(chunks, rows, *shape)

    return Trace(
        held=[room(*width) for width in widths],
        velocity=[room(*width) for width in widths] if given.memory.velocity is not None else [],
        outputs=[room(time, out) for _, out in widths],
        inputs=[keys, *(room(time, wide) for wide, _ in widths[1:])],
        errors=[room(time, out) for _, out in widths],
        returned=[keys, *(room(time, wide) for wide, _ in widths[1:])],
    )


def effective(held: Weights, spec: MemorySpec) -> Weights:
    """The weights that what is held stands for at a chunk's start."""
    return held if spec.retention == "l2" else tuple(Retained(matrix, spec).weights for matrix in held)


def write(i: int, weights: Weights, given: Given, trace: Trace, spec: MemorySpec) -> None:
    """The gradients of chunk i at these weights, in factored form."""
    for layer, matrix in enumerate(weights):
        if layer:
            trace.inputs[layer][i] = activate(trace.outputs[layer - 1][i], spec.activation)
        torch.bmm(trace.inputs[layer][i], matrix, out=trace.outputs[layer][i])
    threshold = None if given.threshold is None else given.threshold[i]
    trace.errors[-1][i] = last_error(
        given.keys[i], trace.outputs[-1][i], given.values[i], threshold, spec, given.affine
    )
    for layer in range(len(weights) - 1, 0, -1):
        torch.bmm(trace.errors[layer][i], weights[layer].mT, out=trace.returned[layer][i])
        before = slope(trace.outputs[layer - 1][i], spec.activation)
        torch.mul(trace.returned[layer][i], before, out=trace.errors[layer - 1][i])


def advanced(i: int, memory: Memory, given: Given, trace: Trace) -> Memory:
    """The memory after chunk i."""
    kept, written, carried, velocity_kept, velocity_written = (None if end is None else end[i] for end in given.ends)
    assert kept is not None
    assert written is not None
    weights, velocities = [], []
    for layer, held in enumerate(memory.weights):
        inputs, errors = trace.inputs[layer][i].mT, trace.errors[layer][i]
        moved = held * kept
        if given.anchor is not None:
            moved.addcmul_(given.anchor[layer], 1 - kept)
        if memory.velocity is not None:
            assert carried is not None
            assert velocity_kept is not None
            velocity = memory.velocity[layer]
            moved.addcmul_(velocity, carried)
            velocities.append((velocity * velocity_kept).baddbmm_(inputs, errors * velocity_written, alpha=-1))
        weights.append(moved.baddbmm_(inputs, errors * written, alpha=-1))
    return Memory(tuple(weights), tuple(velocities) if memory.velocity is not None else None)
