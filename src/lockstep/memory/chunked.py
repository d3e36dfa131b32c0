"""The dual form: whole chunks by matrix products, no weights per token.

Inside a chunk every gradient is an outer product of a row that the network was fed and a row that came back, and how
much of each is in the memory after each token is known in closed form (`coefficients`). Only the writes must wait for the
chunk before (`chain`); the reads of all chunks are done together afterwards (`reading`).

Tensors here are [chunks, rows, time, dim], rows being batch × heads; weights [rows, in, out].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.memory.activations import activate
from lockstep.memory.chain import Layer, chain
from lockstep.memory.coefficients import Coefficients, before, coefficients
from lockstep.memory.reading import Matrix, Shares, apply
from lockstep.memory.retentions import Retained
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import Affine, head, recall, writes
from lockstep.memory.trace import Ends, Given
from lockstep.memory.types import Gates, Memory, Weights


class Tokens(NamedTuple):
    """Whole chunks: queries, keys, values [chunks, rows, time, dim], gates [chunks, rows, time]."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    gates: Gates


def chunked(
    tokens: Tokens, memory: Memory, point: Weights | None, spec: MemorySpec, affine: Affine, anchor: Weights | None
) -> tuple[Tensor, Memory]:
    """Reads [chunks, rows, time, value_dim] and the memory after the last token.

    `point` holds what gradients are taken at in the first chunk, where that has begun before these tokens.
    """
    if tokens.keys.shape[0] == 1 and tokens.keys.shape[2] == 1:
        return one_token(tokens, memory, point, spec, affine, anchor)
    found = coefficients(tokens.gates)
    threshold = tokens.gates.threshold
    given = Given(tokens.keys, tokens.values, threshold, affine, ends(found), memory, anchor, point)
    layers, memory = chain(given, spec)
    matrices = [
        read_matrix(layer, spec, None if anchor is None else anchor[n], None if point is None else point[n])
        for n, layer in enumerate(layers)
    ]
    return read(tokens.queries, matrices, found, spec, affine), memory


def ends(found: Coefficients) -> Ends:
    """The last token's coefficients, shaped as the chain wants them."""

    def scalar(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[..., None, None]

    carried = None if found.carried is None else found.carried[..., -1]
    velocity_written = None if found.velocity_written is None else found.velocity_written[..., None]
    return Ends(
        found.kept[..., -1, None, None],
        found.written[..., -1, :, None],
        scalar(carried),
        scalar(found.velocity_kept),
        velocity_written,
    )


def read_matrix(layer: Layer, spec: MemorySpec, anchor: Tensor | None, point: Tensor | None) -> Matrix:
    """One matrix in the form in which it is read, [chunks × rows, …]."""
    held = layer.held
    if anchor is not None:
        anchor = anchor.expand_as(held)
    errors, base, weights = layer.errors, None, held
    if spec.retention != "l2":
        start = Retained(held if point is None else torch.cat((point[None], held[1:])), spec)
        weights, errors, base = start.follow(held), start.follow(errors), start.base
        anchor = None if anchor is None else start.follow(anchor)
    parts = (weights, layer.inputs, errors, layer.velocity, anchor, base)
    return Matrix(*(None if part is None else part.flatten(0, 1) for part in parts))  # type: ignore[arg-type] # the first three are always there


def read(queries: Tensor, matrices: list[Matrix], found: Coefficients, spec: MemorySpec, affine: Affine) -> Tensor:
    """What each token of each chunk recalls."""
    rows = before(found) if spec.read == "before" else found
    shares = Shares(
        rows.kept.flatten(0, 1)[..., None],
        rows.written.flatten(0, 1),
        None if rows.carried is None else rows.carried.flatten(0, 1)[..., None],
    )
    x = queries.flatten(0, 1)
    for number, matrix in enumerate(matrices):
        x = apply(activate(x, spec.activation) if number else x, matrix, shares)
    return head(queries, x.unflatten(0, queries.shape[:2]), spec, affine)


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
