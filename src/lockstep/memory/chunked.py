"""The dual form: whole chunks by matrix products, no weights per token.

Inside a chunk every gradient is an outer product of a row the network was fed and a row that came back, so the memory
after token t, applied to a row q, is

    q·base + b_t (q·W) + (1 - b_t)(q·anchor) + f_t (q·S) - Σ_s C[t,s] (q·x_s) d_s

with W, S what is held and its velocity at the chunk's start, and C, b, f of `coefficients`. Only the writes must wait for
the chunk before; the reads of all chunks are done together afterwards.

Tensors here are [chunks, rows, time, dim], rows being batch × heads; weights [rows, in, out].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.memory.coefficients import Coefficients, before, coefficients
from lockstep.memory.retentions import Retained
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import ACTIVATIONS, Affine, Writes, head, recall, writes
from lockstep.memory.types import Gates, Memory, Weights


class Tokens(NamedTuple):
    """Whole chunks: queries, keys, values [chunks, rows, time, dim], gates [chunks, rows, time]."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    gates: Gates


class Start(NamedTuple):
    """What the reads of one chunk need of its beginning, per matrix."""

    base: Tensor | None  # the weights' part that does not follow what is held
    weights: Tensor  # what is held, as weights
    anchor: Tensor | None  # where forgetting leads, as weights
    velocity: Tensor | None
    inputs: Tensor  # rows fed to the matrix by the keys
    errors: Tensor  # gradients at its outputs, as weights move with them


def chunked(
    tokens: Tokens, memory: Memory, point: Weights | None, spec: MemorySpec, affine: Affine, anchor: Weights | None
) -> tuple[Tensor, Memory]:
    """Reads [chunks, rows, time, value_dim] and the memory after the last token.

    `point` holds what gradients are taken at in the first chunk, where that has begun before these tokens.
    """
    if tokens.keys.shape[0] == 1 and tokens.keys.shape[2] == 1:
        return one_token(tokens, memory, point, spec, affine, anchor)
    found = coefficients(tokens.gates)
    starts = []
    per_chunk = zip(*(part.unbind() for part in (tokens.keys, tokens.values)), strict=True)
    thresholds = None if tokens.gates.threshold is None else tokens.gates.threshold.unbind()
    for chunk, ((keys, values), ends) in enumerate(zip(per_chunk, last_rows(found), strict=True)):
        retained = [Retained(matrix, spec) for matrix in (memory.weights if point is None else point)]
        weights = tuple(matrix.weights for matrix in retained)
        threshold = None if thresholds is None else thresholds[chunk]
        made = writes(keys, values, threshold, weights, spec, affine)
        starts.append(chunk_start(retained, memory, made, anchor))
        memory = advance(memory, made, ends, anchor)
        point = None
    rows = before(found) if spec.read == "before" else found
    return read(tokens.queries, rows, starts, spec, affine), memory


class Ends(NamedTuple):
    """The coefficients at a chunk's last token, shaped to broadcast over [rows, in, out] or [rows, time, out]."""

    kept: Tensor
    written: Tensor
    carried: Tensor | None
    velocity_kept: Tensor | None
    velocity_written: Tensor | None


def last_rows(found: Coefficients) -> list[Ends]:
    """One per chunk."""

    def scalars(x: Tensor | None) -> tuple[Tensor, ...] | None:
        return None if x is None else x[..., None, None].unbind()

    count = found.kept.shape[0]
    absent = (None,) * count
    carried = absent if found.carried is None else scalars(found.carried[..., -1])
    velocity_written = absent if found.velocity_written is None else found.velocity_written[..., None].unbind()
    parts = (
        scalars(found.kept[..., -1]),
        found.written[..., -1, :, None].unbind(),
        carried,
        scalars(found.velocity_kept) or absent,
        velocity_written,
    )
    return [Ends(*(part[chunk] for part in parts)) for chunk in range(count)]  # type: ignore[index]


def chunk_start(retained: list[Retained], memory: Memory, made: Writes, anchor: Weights | None) -> list[Start]:
    velocity = memory.velocity or (None,) * len(retained)
    return [
        Start(
            start.base,
            start.follow(held),
            None if anchor is None else start.follow(anchor[layer]),
            velocity[layer],
            made.inputs[layer],
            start.follow(made.errors[layer]),
        )
        for layer, (start, held) in enumerate(zip(retained, memory.weights, strict=True))
    ]


def advance(memory: Memory, made: Writes, ends: Ends, anchor: Weights | None) -> Memory:
    """The memory after the chunk."""
    weights, velocities = [], []
    for layer, (inputs, errors) in enumerate(zip(made.inputs, made.errors, strict=True)):
        held = memory.weights[layer] * ends.kept
        if anchor is not None:
            held = torch.addcmul(held, anchor[layer], 1 - ends.kept)
        if memory.velocity is None or ends.velocity_written is None:
            weights.append(torch.baddbmm(held, inputs.mT, errors * ends.written, alpha=-1))
            continue
        assert ends.carried is not None
        assert ends.velocity_kept is not None
        velocity = memory.velocity[layer]
        both = inputs.mT @ torch.cat((errors * ends.written, errors * ends.velocity_written), dim=-1)
        weight_step, velocity_step = both.chunk(2, dim=-1)
        weights.append(torch.addcmul(held, velocity, ends.carried) - weight_step)
        velocities.append(velocity * ends.velocity_kept - velocity_step)
    return Memory(tuple(weights), tuple(velocities) if memory.velocity is not None else None)


def read(queries: Tensor, rows: Coefficients, starts: list[list[Start]], spec: MemorySpec, affine: Affine) -> Tensor:
    """What each token of each chunk recalls, all chunks at once."""
    x = queries.flatten(0, 1)
    kept, written = rows.kept.flatten(0, 1)[..., None], rows.written.flatten(0, 1)
    carried = None if rows.carried is None else rows.carried.flatten(0, 1)[..., None]
    layers = [Start(*map(stacked, zip(*layer, strict=True))) for layer in zip(*starts, strict=True)]
    for number, layer in enumerate(layers):
        x = ACTIVATIONS[spec.activation](x) if number > 0 else x
        z = torch.bmm(x * kept, layer.weights)
        if layer.base is not None:
            z = torch.baddbmm(z, x, layer.base)
        if layer.anchor is not None:
            z = torch.baddbmm(z, x * (1 - kept), layer.anchor)
        if layer.velocity is not None and carried is not None:
            z = torch.baddbmm(z, x * carried, layer.velocity)
        x = torch.baddbmm(z, written * (x @ layer.inputs.mT), layer.errors, alpha=-1)
    said = x.unflatten(0, queries.shape[:2])
    return head(queries, said, spec, affine)


def stacked(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def one_token(
    tokens: Tokens, memory: Memory, point: Weights | None, spec: MemorySpec, affine: Affine, anchor: Weights | None
) -> tuple[Tensor, Memory]:
    """A single token needs no dual form: the memory takes one step and is read."""
    queries, keys, values = tokens.queries[0], tokens.keys[0], tokens.values[0]
    keep, rate, momentum, threshold = (None if gate is None else gate[0] for gate in tokens.gates)
    assert keep is not None
    assert rate is not None
    retained = [Retained(matrix, spec) for matrix in (memory.weights if point is None else point)]
    at_start = tuple(matrix.weights for matrix in retained)
    made = writes(keys, values, threshold, at_start, spec, affine)
    weights, velocities = [], []
    for layer, (inputs, errors) in enumerate(zip(made.inputs, made.errors, strict=True)):
        held = memory.weights[layer] * keep[..., None]
        if anchor is not None:
            held = torch.addcmul(held, anchor[layer], 1 - keep[..., None])
        if memory.velocity is None or momentum is None:
            weights.append(torch.baddbmm(held, inputs.mT, errors * rate[..., None], alpha=-1))
            continue
        coasting = memory.velocity[layer] * momentum[..., None]
        velocities.append(torch.baddbmm(coasting, inputs.mT, errors * rate[..., None], alpha=-1))
        weights.append(held + velocities[-1])
    after = Memory(tuple(weights), tuple(velocities) if memory.velocity is not None else None)
    source = after if spec.read == "after" else memory
    current = tuple(start.at(matrix) for start, matrix in zip(retained, source.weights, strict=True))
    return recall(queries, current, spec, affine)[None], after
