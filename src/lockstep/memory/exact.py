"""Linear memories with a gradient at every token, many tokens at once.

The error of token t depends on the writes before it, linearly: with the coefficients each token finds before its own
write, the errors E of a tile solve

    (I + strict_tril(C⁻ * K Kᵀ)) E = b⁻.(K W) + (1 - b⁻).(K anchor) + f⁻.(K S) - V

and everything else is the dual form. A bias of inner products has E = -V at once, which is linear attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.memory.chunked import Tokens, ends, shares
from lockstep.memory.coefficients import Coefficients, before, coefficients
from lockstep.memory.reading import Matrix, Shares, apply
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import Affine, head
from lockstep.memory.trace import Ends
from lockstep.memory.types import Memory, Weights


def exact(
    tokens: Tokens, memory: Memory, spec: MemorySpec, affine: Affine, anchor: Weights | None
) -> tuple[Tensor, Memory]:
    """As `chunked`, with tiles in the place of chunks; no result depends on the tile."""
    found = coefficients(tokens.gates)
    rows, last = before(found), ends(found)
    targets = tokens.values - tokens.keys if spec.residual else tokens.values
    target = None if anchor is None else anchor[0]
    starts, errors = [], []
    for i, keys in enumerate(tokens.keys.unbind()):
        starts.append(memory)
        if spec.bias == "dot":
            errors.append(-tokens.values[i])
        else:
            errors.append(solved(keys, targets[i], Coefficients(*picked(rows, i)), memory, target))
        memory = advanced(keys, errors[-1], Ends(*picked(last, i)), memory, target)
    held = torch.stack([start.weights[0] for start in starts])
    velocity = torch.stack([start.velocity[0] for start in starts if start.velocity]) if spec.has_momentum else None
    matrix = Matrix(
        held, tokens.keys, torch.stack(errors), velocity, None if target is None else target.expand_as(held)
    )
    queries = tokens.queries.flatten(0, 1)
    said = apply(queries, Matrix(*flattened(matrix)), Shares(*flattened(shares(found, spec))))
    return head(tokens.queries, said.unflatten(0, tokens.queries.shape[:2]), spec, affine), memory


def flattened(parts: tuple[Tensor | None, ...]) -> list[Any]:
    """Tiles and rows as one batch: nothing that is read waits for another tile."""
    return [None if part is None else part.flatten(0, 1) for part in parts]


def solved(keys: Tensor, targets: Tensor, rows: Coefficients, memory: Memory, anchor: Tensor | None) -> Tensor:
    """The errors [rows, time, out] of one tile."""
    kept = rows.kept[..., None]
    known = torch.baddbmm(-targets, keys * kept, memory.weights[0])
    if anchor is not None:
        known = torch.baddbmm(known, keys * (1 - kept), anchor)
    if memory.velocity is not None and rows.carried is not None:
        known = torch.baddbmm(known, keys * rows.carried[..., None], memory.velocity[0])
    # Row t of the shifted coefficients ends before t, so that the product is strictly lower triangular by itself.
    mutual = rows.written * (keys @ keys.mT)
    errors: Tensor = torch.linalg.solve_triangular(mutual, known, upper=False, unitriangular=True)
    return errors


def advanced(keys: Tensor, errors: Tensor, last: Ends, memory: Memory, anchor: Tensor | None) -> Memory:
    """The memory after a tile."""
    held = memory.weights[0] * last.kept
    if anchor is not None:
        held = torch.addcmul(held, anchor, 1 - last.kept)
    held = torch.baddbmm(held, keys.mT, errors * last.written, alpha=-1)
    if memory.velocity is None:
        return Memory((held,))
    assert last.carried is not None
    assert last.velocity_kept is not None
    assert last.velocity_written is not None
    velocity = memory.velocity[0]
    faster = torch.baddbmm(velocity * last.velocity_kept, keys.mT, errors * last.velocity_written, alpha=-1)
    return Memory((torch.addcmul(held, velocity, last.carried),), (faster,))


def picked(parts: tuple[Tensor | None, ...], i: int) -> list[Any]:
    """Tile i of each part."""
    return [None if part is None else part[i] for part in parts]
