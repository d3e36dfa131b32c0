"""Chunks one after the other: what is written, where that leads the memory, and what is read on the way.

With x, z, e a matrix's inputs, outputs and errors (the loss's gradients at its outputs), u the errors before the
activation's slope, and b, f, c, h, g the coefficients at the chunk's last token:

    z_l = x_l W_l   x_(l+1) = act(z_l)   e_L = head(z_L)   u_(l+1) = e_(l+1) W_(l+1)ᵀ   e_l = u_(l+1) * act'(z_l)
    W' = b W + (1 - b) anchor + f S - xᵀ(c.e)   S' = h S - xᵀ(g.e)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.memory.activations import activate, with_slope
from lockstep.memory.reading import Matrix, Part, Shares, applied
from lockstep.memory.retentions import Retained
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import Affine, Writes, last_error
from lockstep.memory.types import Memory, Weights


class Ends(NamedTuple):
    """The coefficients at each chunk's last token; the velocity's are None without momentum."""

    kept: Tensor  # b [chunks, rows, 1, 1]
    written: Tensor  # c [chunks, rows, time, 1]
    carried: Part = None  # f [chunks, rows, 1, 1]
    velocity_kept: Part = None  # h [chunks, rows, 1, 1]
    velocity_written: Part = None  # g [chunks, rows, time, 1]


class Given(NamedTuple):
    """What chunks are run on, or the adjoints of that; tensors [chunks, rows, time, …], weights [rows, in, out]."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    threshold: Part  # [chunks, rows, time]
    affine: Affine
    shares: Shares
    ends: Ends
    memory: Memory
    anchor: Weights | None  # where forgetting leads; None is zero
    point: Weights | None  # what the first chunk's gradients are taken at, where that is not the memory itself


STRIDE = 4
"""Chunks between two copies of the memory; those between are computed again."""


@dataclass
class Trace:
    """What the chunks leave behind, one stack [chunks, rows, …] per matrix; the rest is cheaper computed again."""

    held: list[Tensor]  # [copies, rows, in, out], at the start of every STRIDE-th chunk
    velocity: list[Tensor]
    outputs: list[Tensor]  # z
    last_errors: Tensor  # e of the last matrix
    reads: list[Tensor]  # outputs for the queries

    def keep(self, copy: int, memory: Memory) -> None:
        """Copied into one room: blocks that live long between others that do not would scatter the heap."""
        for stack, matrix in zip(self.held, memory.weights, strict=True):
            stack[copy] = matrix
        for stack, matrix in zip(self.velocity, memory.velocity or (), strict=True):
            stack[copy] = matrix

    def kept(self, copy: int) -> Memory:
        velocity = tuple(stack[copy] for stack in self.velocity)
        return Memory(tuple(stack[copy] for stack in self.held), velocity or None)


def run(given: Given, spec: MemorySpec) -> tuple[Trace, Memory]:
    """All chunks: what they leave behind, the last reads among it, and the memory after the last."""
    trace = allocated(given)
    memory = given.memory
    for i in range(given.keys.shape[0]):
        if i % STRIDE == 0:
            trace.keep(i // STRIDE, memory)
        point = given.point if i == 0 and given.point is not None else memory.weights
        made = write(i, effective(point, spec), given, trace, spec)
        read(i, point, memory, made, given, trace, spec)
        memory = advanced(i, memory, made, given)
    return trace, memory


def allocated(given: Given) -> Trace:
    keys, weights = given.keys, given.memory.weights
    (chunks, rows, time), shapes = keys.shape[:3], [matrix.shape[1:] for matrix in weights]

    copies = -(-chunks // STRIDE)

    def room(*shape: int) -> Tensor:
        return keys.new_empty(chunks, rows, *shape)

    return Trace(
        held=[keys.new_empty(copies, rows, *shape) for shape in shapes],
        velocity=[keys.new_empty(copies, rows, *shape) for shape in shapes if given.memory.velocity is not None],
        outputs=[room(time, out) for _, out in shapes],
        last_errors=room(time, shapes[-1][1]),
        reads=[room(time, out) for _, out in shapes],
    )


def effective(held: Weights, spec: MemorySpec) -> Weights:
    """The weights that what is held stands for at a chunk's start."""
    return held if spec.retention == "l2" else tuple(Retained(matrix, spec).weights for matrix in held)


def write(i: int, weights: Weights, given: Given, trace: Trace, spec: MemorySpec) -> Writes:
    """The gradients of chunk i at these weights, in factored form."""
    inputs, slopes = [given.keys[i]], []
    for layer, matrix in enumerate(weights):
        torch.bmm(inputs[-1], matrix, out=trace.outputs[layer][i])
        if layer < len(weights) - 1:
            value, slope = with_slope(trace.outputs[layer][i], spec.activation)
            inputs.append(value)
            slopes.append(slope)
    threshold = None if given.threshold is None else given.threshold[i]
    trace.last_errors[i] = last_error(
        given.keys[i], trace.outputs[-1][i], given.values[i], threshold, spec, given.affine
    )
    errors = [trace.last_errors[i]]
    for layer in range(len(weights) - 1, 0, -1):
        errors.append(slopes[layer - 1].mul_(torch.bmm(errors[-1], weights[layer].mT)))
    return Writes(tuple(inputs), tuple(reversed(errors)))


def read(i: int, point: Weights, memory: Memory, made: Writes, given: Given, trace: Trace, spec: MemorySpec) -> None:
    """What the queries of chunk i find, each after or before its own token's write."""
    shares = shares_of(given, i)
    x = given.queries[i]
    for layer in range(len(point)):
        x = activate(trace.reads[layer - 1][i], spec.activation) if layer else x
        matrix = read_matrix(layer, point[layer], memory, made, given, spec)
        trace.reads[layer][i] = applied(x, matrix, shares)


def shares_of(given: Given, i: int) -> Shares:
    kept, written, carried = given.shares
    return Shares(kept[i], written[i], None if carried is None else carried[i])


def read_matrix(layer: int, point: Tensor, memory: Memory, made: Writes, given: Given, spec: MemorySpec) -> Matrix:
    """One matrix of a chunk that begins with `memory`, in the form in which it is read."""
    velocity = None if memory.velocity is None else memory.velocity[layer]
    anchor = None if given.anchor is None else given.anchor[layer]
    followed = follow(point, memory.weights[layer], made.errors[layer], anchor, spec)
    return Matrix(followed.weights, made.inputs[layer], followed.errors, velocity, followed.anchor, followed.base)


class Followed(NamedTuple):
    """What is held, written and forgotten towards, as weights."""

    weights: Tensor
    errors: Tensor
    anchor: Part
    base: Part


def follow(point: Tensor, held: Tensor, errors: Tensor, anchor: Part, spec: MemorySpec) -> Followed:
    if spec.retention == "l2":
        return Followed(held, errors, anchor, None)
    start = Retained(point, spec)
    toward = None if anchor is None else start.follow(anchor)
    return Followed(start.follow(held), start.follow(errors), toward, start.base)


def advanced(i: int, memory: Memory, made: Writes, given: Given) -> Memory:
    """The memory after chunk i."""
    kept, written, carried, velocity_kept, velocity_written = given.ends
    weights, velocities = [], []
    for layer, held in enumerate(memory.weights):
        inputs, errors = made.inputs[layer].mT, made.errors[layer]
        moved = held * kept[i]
        if given.anchor is not None:
            moved.addcmul_(given.anchor[layer], 1 - kept[i])
        if memory.velocity is not None:
            assert carried is not None
            assert velocity_kept is not None
            assert velocity_written is not None
            velocity = memory.velocity[layer]
            moved.addcmul_(velocity, carried[i])
            # Out of place: what a compiled autograd.Function makes in place has wrong gradients under torch 2.11.
            coasting = velocity * velocity_kept[i]
            velocities.append(torch.baddbmm(coasting, inputs, errors * velocity_written[i], alpha=-1))
        weights.append(torch.baddbmm(moved, inputs, errors * written[i], alpha=-1))
    return Memory(tuple(weights), tuple(velocities) if memory.velocity is not None else None)
