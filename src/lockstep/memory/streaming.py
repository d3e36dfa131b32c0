"""A memory that goes on: the state between calls, and a run from it over any number of tokens.

Between calls a chunk may be open. What is needed then is where its gradients are taken and where the memory stands now;
the gradients already made are in the latter, so that no token of the open chunk is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.kernels.memory import token
from lockstep.memory.checks import check
from lockstep.memory.chunked import chunked
from lockstep.memory.exact import exact
from lockstep.memory.kernel import SIZES, kernel, lent, pays, tokens_at_once
from lockstep.memory.ownership import is_given_up
from lockstep.memory.retentions import Retained
from lockstep.memory.rows import Rows
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import recall
from lockstep.memory.types import Gates, Memory, Outer, Weights, arithmetic, exactly


class MemoryState(NamedTuple):
    """What a memory carries from call to call; samples may stand at different positions."""

    point: Weights
    """[batch, heads, in, out] each: what was held at the start of the open chunk."""
    weights: Weights
    """What is held now."""
    velocity: Weights
    """Empty without momentum."""
    position: Tensor
    """[batch]: tokens seen."""


def begin(memory: Memory, position: Tensor | None = None) -> MemoryState:
    """The state before the first token, or, with a position [batch], of a memory that a chunk begins with there."""
    first = memory.weights[0]
    if position is None:
        position = torch.zeros(first.shape[0], dtype=torch.int64, device=first.device)
    weights = tuple(matrix.to(arithmetic(matrix.dtype)) for matrix in memory.weights)
    velocity = tuple(matrix.to(arithmetic(matrix.dtype)) for matrix in memory.velocity or ())
    return MemoryState(weights, weights, velocity, position)


def stream(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates,
    state: MemoryState,
    spec: MemorySpec,
    outer: Outer,
    position: int | None = None,
    by_kernel: bool | None = None,
) -> tuple[Tensor, MemoryState]:
    """Reads [batch, heads, time, value_dim] and the state after the last token; any split gives the same.

    `position` is where all samples stand, if the caller knows it: else they are asked, for which a device must wait.
    `by_kernel` says whether Triton runs what lies in whole chunks; None leaves it to `pays`.
    """
    check(queries, keys, values, gates, Memory(state.weights, state.velocity or None), spec)
    if by_kernel is None and token.takes(queries, state.weights, spec):
        run = token.run_over if is_given_up() else token.run
        return run(queries, keys, values, gates, state, spec, outer)
    batch, heads, time = keys.shape[:3]
    rows = Rows(batch, heads, arithmetic(keys.dtype))
    affine, anchor = rows.affine(outer), rows.anchor(outer, spec)
    memory = Memory(rows.weights(state.weights), rows.weights(state.velocity) or None)
    point = rows.weights(state.point)
    by_kernel = pays(queries, state.weights, spec) if by_kernel is None else by_kernel
    reads, done = [], 0
    with exactly(keys.device):
        for piece in pieces(state.position if position is None else position, time, spec):
            here = slice(done, done + piece.size)
            done += piece.size
            if by_kernel and piece.closes and piece.chunk == tokens_at_once(spec):
                said, memory = kernel(*cut(queries, keys, values, gates, here), memory, spec, outer)
            else:
                tokens = rows.tokens(queries, keys, values, gates, here, piece.chunk)
                if spec.exact and piece.size > 1:
                    said, memory = exact(tokens, memory, spec, affine, anchor)
                else:
                    said, memory = chunked(tokens, memory, point, spec, affine, anchor)
                said = rows.joined(said)
            closed = piece.closes if piece.closes is not None else at_start(state.position + done, heads, spec)
            point = reopened(point, memory.weights, closed)
            reads.append(said)
    after = MemoryState(
        rows.apart(point), rows.apart(memory.weights), rows.apart(memory.velocity or ()), state.position + time
    )
    joined = reads[0] if len(reads) == 1 else torch.cat(reads, dim=2)
    return joined.to(queries.dtype), after


def cut(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, here: slice
) -> tuple[Tensor, Tensor, Tensor, Gates]:
    """A piece of the time of each."""
    return queries[:, :, here], keys[:, :, here], values[:, :, here], gates.each(lambda gate: gate[:, :, here])


def recollect(queries: Tensor, held: Weights, spec: MemorySpec, outer: Outer) -> Tensor:
    """What a memory that stands at a chunk's start says to queries [batch, heads, time, dim]; nothing is written."""
    if token.takes(queries, held, spec):
        return token.recall(queries, held, spec, outer)
    # The operator takes weights, which what is held is under l2 alone.
    if spec.retention == "l2" and pays(queries, held, spec) and in_tiles(queries):
        return recollect_by_kernel(queries, held, spec, outer)
    rows = Rows(queries.shape[0], queries.shape[1], arithmetic(queries.dtype))
    with exactly(queries.device):
        weights = tuple(Retained(matrix, spec).weights for matrix in rows.weights(held))
        said = recall(rows.chunks(queries, queries.shape[2])[0], weights, spec, rows.affine(outer))
    return rows.joined(said[None]).to(queries.dtype)


def in_tiles(queries: Tensor) -> bool:
    """Whether tokens fill tiles, as those of whole segments do: what is left is little, and torch's."""
    return queries.shape[2] > 0 and queries.shape[2] % SIZES[0] == 0


def recollect_by_kernel(queries: Tensor, held: Weights, spec: MemorySpec, outer: Outer) -> Tensor:
    """As `recollect`, by Triton, of queries where they lie; reads lie next to those of other heads."""
    # Triton is needed where it is used alone.
    from lockstep.kernels.memory.recalling import recall as operator

    batch, heads = queries.shape[:2]
    reads, _ = operator(
        queries,
        *Rows(batch, heads, arithmetic(queries.dtype)).weights(held),
        *lent(outer, spec, queries),
        spec.residual,
        spec.activation,
    )
    apart: Tensor = reads.unflatten(2, (heads, -1)).transpose(1, 2)
    return apart


class Piece(NamedTuple):
    """Tokens that are run at once: whole chunks, or a part of one."""

    size: int
    chunk: int
    closes: bool | None
    """Whether a chunk ends with it in every sample or in none; None where samples differ or must be asked."""


def pieces(position: Tensor | int, time: int, spec: MemorySpec) -> Iterator[Piece]:
    """Cut the time so that no piece crosses a chunk's start in any sample, except in whole chunks common to all."""
    if isinstance(position, Tensor) and time == 1 and position.device.type != "cpu":
        yield Piece(1, 1, None)
        return
    if spec.exact:
        whole = time - time % spec.tile
        if whole:
            yield Piece(whole, spec.tile, True)
        if time > whole:
            yield Piece(time - whole, time - whole, True)
        return
    chunk = spec.chunk
    phases = {at % chunk for at in ([position] if isinstance(position, int) else position.tolist())}
    done = 0
    while done < time:
        to_end = {chunk - (phase + done) % chunk for phase in phases}
        nearest = min(to_end)
        left = time - done
        if to_end == {chunk} and left >= chunk:
            size = left - left % chunk
            yield Piece(size, chunk, True)
        else:
            size = min(nearest, left)
            yield Piece(size, size, None if len(to_end) > 1 else size == nearest)
        done += size


def at_start(position: Tensor, heads: int, spec: MemorySpec) -> Tensor:
    """Which rows stand at a chunk's start, [rows, 1, 1]."""
    return (position % spec.chunk == 0).repeat_interleave(heads)[:, None, None]


def reopened(point: Weights, held: Weights, closed: bool | Tensor) -> Weights:
    """Where the next gradients are taken: at what is held now, in the rows where a chunk has ended."""
    if isinstance(closed, bool):
        return held if closed else point
    return tuple(torch.where(closed, new, old) for new, old in zip(held, point, strict=True))
