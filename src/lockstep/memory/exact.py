"""Linear memories with a gradient at every token, many tokens at once.

The error of token t depends on the writes before it, linearly: with the coefficients each token finds before its own
write, the errors E of a tile solve

    (I + strict_tril(C⁻ * K Kᵀ)) E = b⁻.(K W) + (1 - b⁻).(K anchor) + f⁻.(K S) - V

and everything else is the dual form. A bias of inner products has E = -V at once, which is linear attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.memory.chunked import Start, Tokens, advance, last_rows, read
from lockstep.memory.coefficients import Coefficients, before, coefficients
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import Affine, Writes
from lockstep.memory.types import Memory, Weights


def exact(
    tokens: Tokens, memory: Memory, spec: MemorySpec, affine: Affine, anchor: Weights | None
) -> tuple[Tensor, Memory]:
    """As `chunked`, with tiles in the place of chunks; no result depends on the tile."""
    found = coefficients(tokens.gates)
    rows = before(found)
    targets = tokens.values - tokens.keys if spec.residual else tokens.values
    starts = []
    for tile, ends in enumerate(last_rows(found)):
        keys = tokens.keys[tile]
        if spec.bias == "dot":
            errors = -tokens.values[tile]
        else:
            errors = solved(keys, targets[tile], Coefficients(*(take(row, tile) for row in rows)), memory, anchor)
        velocity = None if memory.velocity is None else memory.velocity[0]
        start = Start(None, memory.weights[0], None if anchor is None else anchor[0], velocity, keys, errors)
        starts.append([start])
        memory = advance(memory, Writes((keys,), (errors,)), ends, anchor)
    return read(tokens.queries, rows if spec.read == "before" else found, starts, spec, affine), memory


def take(row: Tensor | None, tile: int) -> Tensor | None:
    return None if row is None else row[tile]


def solved(keys: Tensor, targets: Tensor, rows: Coefficients, memory: Memory, anchor: Weights | None) -> Tensor:
    """The errors [rows, time, out] of one tile."""
    kept = rows.kept[..., None]
    known = torch.baddbmm(-targets, keys * kept, memory.weights[0])
    if anchor is not None:
        known = torch.baddbmm(known, keys * (1 - kept), anchor[0])
    if memory.velocity is not None and rows.carried is not None:
        known = torch.baddbmm(known, keys * rows.carried[..., None], memory.velocity[0])
    # Row t of the shifted coefficients ends before t, so that the product is strictly lower triangular by itself.
    mutual = rows.written * (keys @ keys.mT)
    return torch.linalg.solve_triangular(mutual, known, upper=False, unitriangular=True)
