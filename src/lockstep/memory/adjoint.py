"""The derivative of a chain of chunks, from the last to the first. A bar over a letter of `trace` is `_bar` here.

The head (norm, residual, bias, clip) and the retention act on little, and are differentiated automatically.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.memory.activations import slope_and_curve
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import Affine, last_error
from lockstep.memory.trace import Ends, Given, Part, Trace, effective
from lockstep.memory.types import Memory, Weights


class Received(NamedTuple):
    """Adjoints of what the chain gave, per matrix; None where nothing came back."""

    held: Sequence[Part]
    velocity: Sequence[Part]
    inputs: Sequence[Part]
    errors: Sequence[Part]
    weights: Sequence[Part]
    last_velocity: Sequence[Part]


def adjoint(given: Given, trace: Trace, received: Received, spec: MemorySpec) -> Given:
    """Adjoints in the shape of what was given."""
    bars = cleared(given)
    held_bar = [zeros_unless(bar, stack[0]) for bar, stack in zip(received.weights, trace.held, strict=True)]
    velocity_bar = [
        zeros_unless(bar, stack[0]) for bar, stack in zip(received.last_velocity, trace.velocity, strict=False)
    ]
    point_bar: list[Tensor] = []
    for i in reversed(range(given.keys.shape[0])):
        errors_bar, inputs_bar = through_advance(i, given, trace, held_bar, velocity_bar, bars)
        for layer in range(spec.layers):
            errors_bar[layer] = plus(errors_bar[layer], received.errors[layer], i)
            inputs_bar[layer] = plus(inputs_bar[layer], received.inputs[layer], i)
            held_bar[layer] = plus(held_bar[layer], received.held[layer], i)
            if velocity_bar:
                velocity_bar[layer] = plus(velocity_bar[layer], received.velocity[layer], i)
        elsewhere = i == 0 and given.point is not None
        point = given.point if elsewhere and given.point is not None else tuple(stack[i] for stack in trace.held)
        weights_bar = through_writes(i, effective(point, spec), given, trace, errors_bar, inputs_bar, bars, spec)
        at_point = through_retention(point, weights_bar, spec)
        if elsewhere:
            point_bar = at_point
        else:
            held_bar = [one.add_(other) for one, other in zip(held_bar, at_point, strict=True)]
    memory = Memory(tuple(held_bar), tuple(velocity_bar) if velocity_bar else None)
    return bars._replace(memory=memory, point=tuple(point_bar) if point_bar else None)


def cleared(given: Given) -> Given:
    """Room for the adjoints of everything but the memory, which is carried from chunk to chunk."""

    def zeros(part: Part) -> Part:
        return None if part is None else torch.zeros_like(part)

    anchor = None if given.anchor is None else tuple(torch.zeros_like(matrix) for matrix in given.anchor)
    return given._replace(
        keys=torch.zeros_like(given.keys),
        values=torch.zeros_like(given.values),
        threshold=zeros(given.threshold),
        affine=Affine(*map(zeros, given.affine)),
        ends=Ends(*map(zeros, given.ends)),  # type: ignore[arg-type] # kept and written are always there
        anchor=anchor,
    )


def through_advance(
    i: int, given: Given, trace: Trace, held_bar: list[Tensor], velocity_bar: list[Tensor], bars: Given
) -> tuple[list[Tensor], list[Tensor]]:
    """Back over `advanced`: the adjoints of errors and inputs; those of the memory are replaced by the ones before it."""
    kept, written, carried, velocity_kept, velocity_written = (None if end is None else end[i] for end in given.ends)
    assert kept is not None
    errors_bar, inputs_bar = [], []
    for layer, after in enumerate(held_bar):
        inputs, errors, held = trace.inputs[layer][i], trace.errors[layer][i], trace.held[layer][i]
        back = torch.bmm(inputs, after)
        bars.ends.written[i].sub_(along(errors, back))
        errors_bar.append((back * written).neg_())
        inputs_bar.append(torch.bmm(errors * written, after.mT).neg_())
        target = 0.0 if given.anchor is None else given.anchor[layer]
        bars.ends.kept[i].add_(total(after, held - target))
        if bars.anchor is not None:
            bars.anchor[layer].addcmul_(after, 1 - kept)
        held_bar[layer] = after * kept
        if not velocity_bar:
            continue
        assert bars.ends.carried is not None
        assert bars.ends.velocity_kept is not None
        assert bars.ends.velocity_written is not None
        assert carried is not None
        velocity, faster = trace.velocity[layer][i], velocity_bar[layer]
        back = torch.bmm(inputs, faster)
        bars.ends.velocity_written[i].sub_(along(errors, back))
        bars.ends.carried[i].add_(total(after, velocity))
        bars.ends.velocity_kept[i].add_(total(faster, velocity))
        errors_bar[-1].addcmul_(back, velocity_written, value=-1)
        inputs_bar[-1].baddbmm_(errors * velocity_written, faster.mT, alpha=-1)
        velocity_bar[layer] = (faster * velocity_kept).addcmul_(after, carried)
    return errors_bar, inputs_bar


def through_writes(
    i: int,
    weights: Weights,
    given: Given,
    trace: Trace,
    errors_bar: list[Tensor],
    inputs_bar: list[Tensor],
    bars: Given,
    spec: MemorySpec,
) -> list[Tensor]:
    """Back over `write`: the adjoints of the weights that the gradients were taken at."""
    weights_bar: list[Tensor] = [torch.empty(0)] * len(weights)
    derivatives = [slope_and_curve(stack[i], spec.activation) for stack in trace.outputs[:-1]]
    slopes_bar = []
    for layer in range(len(weights) - 1):
        slopes_bar.append(errors_bar[layer] * trace.returned[layer + 1][i])
        returned_bar = errors_bar[layer].mul_(derivatives[layer][0])
        errors_bar[layer + 1].baddbmm_(returned_bar, weights[layer + 1])
        weights_bar[layer + 1] = torch.bmm(returned_bar.mT, trace.errors[layer + 1][i])
    outputs_bar = through_head(i, errors_bar[-1], given, trace, bars, spec)
    for layer in range(len(weights) - 1, -1, -1):
        inputs = trace.inputs[layer][i]
        if layer:
            weights_bar[layer].baddbmm_(inputs.mT, outputs_bar)
        else:
            weights_bar[0] = torch.bmm(inputs.mT, outputs_bar)
        inputs_bar[layer].baddbmm_(outputs_bar, weights[layer].mT)
        if layer:
            first, second = derivatives[layer - 1]
            outputs_bar = inputs_bar[layer].mul_(first).addcmul_(slopes_bar[layer - 1], second)
    bars.keys[i].add_(inputs_bar[0])
    return weights_bar


def through_head(i: int, error_bar: Tensor, given: Given, trace: Trace, bars: Given, spec: MemorySpec) -> Tensor:
    """Back over the last error: the adjoint of the last matrix's output."""
    parts = (given.keys[i], trace.outputs[-1][i], given.values[i], pick(given.threshold, i), *given.affine)
    found = differentiated(
        lambda k, z, v, d, gain, shift: last_error(k, z, v, d, spec, Affine(gain, shift)), parts, error_bar
    )
    rooms = (bars.keys[i], None, bars.values[i], pick(bars.threshold, i), *bars.affine)
    for bar, room in zip(found, rooms, strict=True):
        if bar is not None and room is not None:
            room.add_(bar)
    return torch.zeros_like(error_bar) if found[1] is None else found[1]


def through_retention(point: Weights, weights_bar: list[Tensor], spec: MemorySpec) -> list[Tensor]:
    """Back from weights to what is held."""
    if spec.retention == "l2":
        return weights_bar
    found = [
        differentiated(lambda held: effective((held,), spec)[0], (matrix,), bar)[0]
        for matrix, bar in zip(point, weights_bar, strict=True)
    ]
    return [bar for bar in found if bar is not None]


def differentiated(function: Callable[..., Tensor], parts: Sequence[Part], bar: Tensor) -> list[Part]:
    """The adjoints of a function's arguments, None for those that are absent or have no part in it."""
    with torch.enable_grad():
        leaves = [None if part is None else part.detach().requires_grad_() for part in parts]
        value = function(*leaves)
    present = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(value, present, bar, allow_unused=True))
    return [None if leaf is None else next(found) for leaf in leaves]


def plus(bar: Tensor, received: Part, i: int) -> Tensor:
    return bar if received is None else bar.add_(received[i])


def zeros_unless(bar: Part, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if bar is None else bar.clone()


def pick(part: Part, i: int) -> Part:
    return None if part is None else part[i]


def along(one: Tensor, other: Tensor) -> Tensor:
    """Inner products of rows, [rows, time, 1]."""
    return (one * other).sum(dim=-1, keepdim=True)


def total(one: Tensor, other: Tensor) -> Tensor:
    """Inner products of matrices, [rows, 1, 1]."""
    return (one * other).sum(dim=(-2, -1), keepdim=True)
