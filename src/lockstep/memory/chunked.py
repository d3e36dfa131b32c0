"""The dual form: whole chunks by matrix products, no weights per token.

Inside a chunk every gradient is an outer product of a row that the network was fed and a row that came back, and how
much of each is in the memory after each token is known in closed form (`coefficients`).

Tensors here are [chunks, rows, time, dim], rows being batch × heads; weights [rows, in, out].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.memory.chain import chain
from lockstep.memory.coefficients import Coefficients, before, coefficients
from lockstep.memory.reading import Shares
from lockstep.memory.recomputation import recomputed
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
    found = recomputed(coefficients, tokens.gates)
    given = Given(
        tokens.queries,
        tokens.keys,
        tokens.values,
        tokens.gates.threshold,
        affine,
        shares(found, spec),
        ends(found),
        memory,
        anchor,
        point,
    )
    said, memory = chain(given, spec)
    return recomputed(head, tokens.queries, said, spec, affine), memory


def shares(found: Coefficients, spec: MemorySpec) -> Shares:
    """What each token finds when it reads, [chunks, rows, time, …]."""
    rows = before(found) if spec.read == "before" else found
    return Shares(rows.kept[..., None], rows.written, None if rows.carried is None else rows.carried[..., None])


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
