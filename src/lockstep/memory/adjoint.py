"""The derivative of a run of chunks, from the last to the first. A bar over a letter of `trace` is `_bar` here.

The head (norm, residual, bias, clip) and the retention act on little, and are differentiated automatically, except for
the usual head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.memory.activations import with_slope, with_slope_and_curve
from lockstep.memory.reading import Matrix, Part, Shares, through_applied
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import Affine, Writes, last_error, normalised, through_norm
from lockstep.memory.trace import STRIDE, Ends, Given, Trace, advanced, effective, follow, read_matrix, shares_of
from lockstep.memory.types import Memory, Weights


def adjoint(given: Given, trace: Trace, said_bar: Part, last_bar: Sequence[Part], spec: MemorySpec) -> Given:
    """Adjoints in the shape of what was given, from those of the last reads and of the last memory."""
    bars = cleared(given)
    first = trace.kept(0)
    held_bar = [zeros_unless(bar, matrix) for bar, matrix in zip(last_bar, first.weights, strict=False)]
    moving = first.velocity or ()
    velocity_bar = [zeros_unless(bar, matrix) for bar, matrix in zip(last_bar[spec.layers :], moving, strict=True)]
    point_bar: list[Tensor] | None = None
    for i, memory, again in backwards(given, trace, spec):
        found = through_reads(i, again.point, memory, again.made, said_bar, given, trace, bars, spec)
        through_advance(i, memory, again.made, given, held_bar, velocity_bar, found, bars)
        weights_bar = through_writes(i, again, given, trace, found, bars, spec)
        at_point = through_retention(again.point, weights_bar, spec)
        at_point = [plus(one, more.point) for one, more in zip(at_point, found, strict=True)]
        if i == 0 and given.point is not None:
            point_bar = at_point
        else:
            held_bar = [one.add_(other) for one, other in zip(held_bar, at_point, strict=True)]
    memory_bar = Memory(tuple(held_bar), tuple(velocity_bar) if velocity_bar else None)
    return bars._replace(memory=memory_bar, point=None if point_bar is None else tuple(point_bar))


def backwards(given: Given, trace: Trace, spec: MemorySpec) -> Iterator[tuple[int, Memory, Rewritten]]:
    """Each chunk from the last to the first, with the memory that it began with and what it wrote."""
    chunks = given.keys.shape[0]
    for copy in reversed(range(trace.held[0].shape[0])):
        memory = trace.kept(copy)
        group: list[tuple[int, Memory, Rewritten]] = []
        for i in range(copy * STRIDE, min(copy * STRIDE + STRIDE, chunks)):
            if group:
                memory = advanced(i - 1, memory, group[-1][2].made, given)
            group.append((i, memory, rewritten(i, memory, given, trace, spec)))
        yield from reversed(group)


def cleared(given: Given) -> Given:
    """Room for the adjoints of everything but the memory, which is carried from chunk to chunk."""

    def zeros(part: Part) -> Part:
        return None if part is None else torch.zeros_like(part)

    anchor = None if given.anchor is None else tuple(torch.zeros_like(matrix) for matrix in given.anchor)
    shares = Shares(
        torch.zeros_like(given.shares.kept), torch.zeros_like(given.shares.written), zeros(given.shares.carried)
    )
    ends = Ends(torch.zeros_like(given.ends.kept), torch.zeros_like(given.ends.written), *map(zeros, given.ends[2:]))
    affine = Affine(*map(zeros, given.affine))
    return Given(
        torch.zeros_like(given.queries),
        torch.zeros_like(given.keys),
        torch.zeros_like(given.values),
        zeros(given.threshold),
        affine,
        shares,
        ends,
        given.memory,
        anchor,
        None,
    )


class Rewritten(NamedTuple):
    """What a chunk wrote, computed again, and the derivatives of its activations."""

    point: Weights
    """What was held where the gradients were taken, and the weights that this stood for."""
    weights: Weights
    made: Writes
    returned: list[Tensor]  # u, without the first matrix
    slopes: list[Tensor]
    curves: list[Tensor]


def rewritten(i: int, memory: Memory, given: Given, trace: Trace, spec: MemorySpec) -> Rewritten:
    point = given.point if i == 0 and given.point is not None else memory.weights
    weights = effective(point, spec)
    derived = [with_slope_and_curve(outputs[i], spec.activation) for outputs in trace.outputs[:-1]]
    errors, returned = [trace.last_errors[i]], []
    for (_, slope, _), matrix in zip(reversed(derived), reversed(weights), strict=False):
        returned.append(torch.bmm(errors[-1], matrix.mT))
        errors.append(returned[-1] * slope)
    made = Writes((given.keys[i], *(value for value, _, _ in derived)), tuple(reversed(errors)))
    slopes, curves = [slope for _, slope, _ in derived], [curve for _, _, curve in derived]
    return Rewritten(point, weights, made, returned[::-1], slopes, curves)


@dataclass
class LayerBars:
    """Adjoints of what one matrix has in one chunk, added up on the way back."""

    held: Tensor
    velocity: Part
    inputs: Tensor
    errors: Tensor
    point: Part
    """By way of the retention's map, where that is not the identity."""


def through_reads(
    i: int,
    point: Weights,
    memory: Memory,
    made: Writes,
    said_bar: Part,
    given: Given,
    trace: Trace,
    bars: Given,
    spec: MemorySpec,
) -> list[LayerBars]:
    """Back over `read`."""
    shares = shares_of(given, i)
    bar = torch.zeros_like(trace.last_errors[i]) if said_bar is None else said_bar[i]
    found: list[LayerBars] = []
    rows = [with_slope(stack[i], spec.activation) for stack in trace.reads]
    for layer in range(len(point) - 1, -1, -1):
        x = rows[layer - 1][0] if layer else given.queries[i]
        matrix = read_matrix(layer, point[layer], memory, made, given, spec)
        x_bar, matrix_bar, shares_bar = through_applied(bar, x, matrix, shares)
        bars.shares.kept[i].add_(shares_bar.kept)
        bars.shares.written[i].add_(shares_bar.written)
        if bars.shares.carried is not None and shares_bar.carried is not None:
            bars.shares.carried[i].add_(shares_bar.carried)
        found.append(through_follow(layer, point[layer], memory, made, matrix_bar, given, bars, spec))
        bar = x_bar.mul_(rows[layer - 1][1]) if layer else x_bar
    bars.queries[i] = bar
    return found[::-1]


def through_follow(
    layer: int,
    point: Tensor,
    memory: Memory,
    made: Writes,
    bar: Matrix,
    given: Given,
    bars: Given,
    spec: MemorySpec,
) -> LayerBars:
    """Back over `read_matrix`."""
    anchor = None if given.anchor is None else given.anchor[layer]
    held, errors = memory.weights[layer], made.errors[layer]
    found: list[Part] = [None, bar.weights, bar.errors, bar.anchor]
    if spec.retention != "l2":
        wanted = (bar.weights, bar.errors, bar.anchor, bar.base)
        found = differentiated(lambda p, h, e, a: follow(p, h, e, a, spec), (point, held, errors, anchor), wanted)
    point_bar, held_bar, errors_bar, anchor_bar = found
    if anchor_bar is not None and bars.anchor is not None:
        bars.anchor[layer].add_(anchor_bar)
    assert held_bar is not None
    assert errors_bar is not None
    return LayerBars(held_bar, bar.velocity, bar.inputs, errors_bar, point_bar)


def through_advance(
    i: int,
    memory: Memory,
    made: Writes,
    given: Given,
    held_bar: list[Tensor],
    velocity_bar: list[Tensor],
    found: list[LayerBars],
    bars: Given,
) -> None:
    """Back over `advanced`; the adjoints of the memory become those before the chunk."""
    kept, written = given.ends.kept[i], given.ends.written[i]
    for layer, (after, own) in enumerate(zip(held_bar, found, strict=True)):
        inputs, errors, held = made.inputs[layer], made.errors[layer], memory.weights[layer]
        back = torch.bmm(inputs, after)
        bars.ends.written[i].sub_(along(errors, back))
        own.errors.addcmul_(back, written, value=-1)
        own.inputs.baddbmm_(errors * written, after.mT, alpha=-1)
        bars.ends.kept[i].add_(total(after, held if given.anchor is None else held - given.anchor[layer]))
        if bars.anchor is not None:
            bars.anchor[layer].addcmul_(after, 1 - kept)
        held_bar[layer] = own.held.addcmul_(after, kept)
        if velocity_bar:
            velocity_bar[layer] = through_velocity(i, layer, memory, made, given, after, velocity_bar[layer], own, bars)


def through_velocity(
    i: int,
    layer: int,
    memory: Memory,
    made: Writes,
    given: Given,
    after: Tensor,
    faster: Tensor,
    own: LayerBars,
    bars: Given,
) -> Tensor:
    """The velocity's part of `through_advance`; `after` and `faster` are the adjoints of what comes out of it."""
    _, _, carried, kept, written = given.ends
    _, _, carried_bar, kept_bar, written_bar = bars.ends
    assert carried is not None
    assert kept is not None
    assert written is not None
    assert carried_bar is not None
    assert kept_bar is not None
    assert written_bar is not None
    assert own.velocity is not None
    assert memory.velocity is not None
    inputs, errors, velocity = made.inputs[layer], made.errors[layer], memory.velocity[layer]
    back = torch.bmm(inputs, faster)
    written_bar[i].sub_(along(errors, back))
    own.errors.addcmul_(back, written[i], value=-1)
    own.inputs.baddbmm_(errors * written[i], faster.mT, alpha=-1)
    carried_bar[i].add_(total(after, velocity))
    kept_bar[i].add_(total(faster, velocity))
    return own.velocity.addcmul_(after, carried[i]).addcmul_(faster, kept[i])


def through_writes(
    i: int, again: Rewritten, given: Given, trace: Trace, found: list[LayerBars], bars: Given, spec: MemorySpec
) -> list[Tensor]:
    """Back over `write`: the adjoints of the weights that the gradients were taken at."""
    weights = again.weights
    weights_bar: list[Tensor] = []
    slopes_bar = []
    for layer in range(1, len(weights)):
        before_bar = found[layer - 1].errors
        slopes_bar.append(before_bar * again.returned[layer - 1])
        returned_bar = before_bar.mul_(again.slopes[layer - 1])
        found[layer].errors.baddbmm_(returned_bar, weights[layer])
        weights_bar.append(torch.bmm(returned_bar.mT, again.made.errors[layer]))
    outputs_bar = through_head(i, found[-1].errors, given, trace, bars, spec)
    for layer in range(len(weights) - 1, 0, -1):
        weights_bar[layer - 1].baddbmm_(again.made.inputs[layer].mT, outputs_bar)
        inputs_bar = found[layer].inputs.baddbmm_(outputs_bar, weights[layer].mT)
        outputs_bar = inputs_bar.mul_(again.slopes[layer - 1]).addcmul_(slopes_bar[layer - 1], again.curves[layer - 1])
    bars.keys[i].add_(found[0].inputs.baddbmm_(outputs_bar, weights[0].mT))
    return [torch.bmm(given.keys[i].mT, outputs_bar), *weights_bar]


def through_retention(point: Weights, weights_bar: list[Tensor], spec: MemorySpec) -> list[Tensor]:
    """Back from weights to what is held."""
    if spec.retention == "l2":
        return weights_bar
    found = [
        differentiated(lambda held: effective((held,), spec), (matrix,), (bar,))[0]
        for matrix, bar in zip(point, weights_bar, strict=True)
    ]
    return [bar for bar in found if bar is not None]


def through_head(i: int, error_bar: Tensor, given: Given, trace: Trace, bars: Given, spec: MemorySpec) -> Tensor:
    """Back over the last error: the adjoint of the last matrix's output."""
    parts = HeadParts(given.keys[i], trace.outputs[-1][i], given.values[i], pick(given.threshold, i), *given.affine)
    if spec.norm and spec.bias == "l2" and spec.clip is None:
        found = squared_error_after_norm(parts, trace.last_errors[i], error_bar, spec)
    else:
        found = HeadParts(
            *differentiated(
                lambda k, z, v, d, *affine: (last_error(k, z, v, d, spec, Affine(*affine)),), parts, (error_bar,)
            )
        )
    rooms = (bars.keys[i], None, bars.values[i], pick(bars.threshold, i), *bars.affine)
    for bar, room in zip(found, rooms, strict=True):
        if bar is not None and room is not None:
            room.add_(bar)
    return torch.zeros_like(error_bar) if found.outputs is None else found.outputs


class HeadParts(NamedTuple):
    """What the last error is made of, or the adjoints of that."""

    keys: Part
    outputs: Part
    values: Part
    threshold: Part
    gain: Part
    shift: Part


def squared_error_after_norm(parts: HeadParts, error: Tensor, bar: Tensor, spec: MemorySpec) -> HeadParts:
    """By hand for the usual memory, which spends more on its head than on its products otherwise.

    With n the normalised output, s one over its standard deviation and J = s (1 - mean - n mean(n ·)), which is
    symmetric, the error is J g, where g = gain * r and r = gain * n + shift + key - value.
    """
    assert parts.outputs is not None
    assert parts.values is not None
    normal = normalised(parts.outputs)
    gain = 1.0 if parts.gain is None else parts.gain
    residual = Affine(parts.gain, parts.shift).apply(normal.values) - parts.values
    residual = residual if parts.keys is None or not spec.residual else residual.add_(parts.keys)
    pulled = residual * gain
    pulled_bar = through_norm(bar, normal)
    residual_bar = pulled_bar * gain
    along_normal = (bar * normal.values).mean(dim=-1, keepdim=True)
    from_normal = (pulled * normal.values).mean(dim=-1, keepdim=True)
    normal_bar = residual_bar * gain - normal.scale * (bar * from_normal + pulled * along_normal)
    # J's factor s moves with the outputs too: ds/dz = -s² n / width.
    stretched = (bar * error).mean(dim=-1, keepdim=True) * normal.scale
    outputs_bar = through_norm(normal_bar, normal).addcmul_(normal.values, stretched, value=-1)
    gain_bar = None
    if parts.gain is not None:
        gain_bar = (pulled_bar * residual + residual_bar * normal.values).sum(dim=-2, keepdim=True)
    shift_bar = None if parts.shift is None else residual_bar.sum(dim=-2, keepdim=True)
    keys_bar = residual_bar if spec.residual else None
    return HeadParts(keys_bar, outputs_bar, -residual_bar, None, gain_bar, shift_bar)


def differentiated(function: Callable[..., Sequence[Part]], parts: Sequence[Part], bars: Sequence[Part]) -> list[Part]:
    """The adjoints of a function's arguments, None for those that are absent."""
    there = [i for i, part in enumerate(parts) if part is not None]
    wanted = tuple(bar for bar in bars if bar is not None)

    def of_present(*present: Tensor) -> tuple[Part, ...]:
        given = dict(zip(there, present, strict=True))
        values = function(*(given.get(i) for i in range(len(parts))))
        return tuple(value for value, bar in zip(values, bars, strict=True) if bar is not None)

    # Not by autograd.grad, which a compiler does not follow into a derivative.
    pull: Callable[..., tuple[Tensor, ...]] = torch.func.vjp(of_present, *(parts[i] for i in there))[1]
    found = dict(zip(there, pull(wanted), strict=True))
    return [found.get(i) for i in range(len(parts))]


def plus(bar: Tensor, more: Part) -> Tensor:
    return bar if more is None else bar + more


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
