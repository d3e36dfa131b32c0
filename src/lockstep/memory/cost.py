"""Matrix products that a memory takes, counted from its shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lockstep.memory.spec import MemorySpec
from lockstep.memory.trace import STRIDE


class Flops(NamedTuple):
    """Of one row (a head of a sample) over a sequence."""

    forward: float
    extra: float
    """What training takes beyond three times that."""


def memory_flops(spec: MemorySpec, shapes: Sequence[Sequence[int]], length: int, decay: bool) -> Flops:
    """From an empty start over `length` tokens; shapes are those of the matrices, and `decay` says if gates forget."""
    size = spec.tile if spec.exact else spec.chunk
    whole, rest = divmod(length, size)
    sizes = [size] * whole + [rest] * (rest > 0)
    count = exact_flops if spec.exact else chunk_flops
    parts = [count(spec, shapes, tokens, decay) for tokens in sizes]
    forward, extra = sum(part.forward for part in parts), sum(part.extra for part in parts)
    extra += edges(spec, shapes, sizes) if spec.exact else between_copies(spec, shapes, whole)
    return Flops(forward, extra)


def token_flops(shapes: Sequence[Sequence[int]]) -> float:
    """A single token, which needs no dual form: errors, one step of every matrix, and the read."""
    entries = [rows * columns for rows, columns in shapes]
    return 2.0 * (3 * sum(entries) + sum(entries[1:]))


def between_copies(spec: MemorySpec, shapes: Sequence[Sequence[int]], whole: int) -> float:
    """Memories that were not kept are computed again: all of a group of chunks but the first."""
    again = whole - -(-whole // STRIDE)
    return again * sum(step_flops(spec, (shape,), spec.chunk) for shape in shapes)


def chunk_flops(spec: MemorySpec, shapes: Sequence[Sequence[int]], size: int, decay: bool) -> Flops:
    """One chunk of the dual form; errors before the last matrix are computed again on the way back."""
    entries = [rows * columns for rows, columns in shapes]
    writes = sum(entries) + sum(entries[1:])
    steps = sum(entries) * (1 + spec.has_momentum)
    forward = 2.0 * size * (writes + steps) + read_flops(spec, shapes, size)
    extra = again_flops(shapes, size) + 2.0 * size * sum(entries[1:])
    return with_coefficients(forward, extra, spec, size, decay)


def read_flops(spec: MemorySpec, shapes: Sequence[Sequence[int]], size: int) -> float:
    """What the queries of a chunk take."""
    parts = 1 + spec.has_momentum + (spec.decay_to == "initial") + (spec.retention == "kl")
    return sum(2.0 * size * (rows * columns * parts + size * (rows + columns)) for rows, columns in shapes)


def again_flops(shapes: Sequence[Sequence[int]], size: int) -> float:
    """Products of queries and keys, which are computed again on the way back."""
    return sum(2.0 * size**2 * rows for rows, _ in shapes)


def with_coefficients(forward: float, extra: float, spec: MemorySpec, size: int, decay: bool) -> Flops:
    """The closed form's own products: one forward under momentum, and one per kind of gate on the way back."""
    cubic = 2.0 * size**3
    mixed = 2.0 * size**2 * (size + 1) if spec.has_momentum else 0.0
    gradients = cubic * (decay + spec.has_momentum)
    # Gates that are constant have no derivative: of the product's two, one is left.
    return Flops(forward + mixed, extra + gradients - (0.0 if decay else mixed))


def exact_flops(spec: MemorySpec, shapes: Sequence[Sequence[int]], size: int, decay: bool) -> Flops:
    """One tile of the exact form."""
    ((rows, columns),) = shapes
    forward = read_flops(spec, shapes, size) + step_flops(spec, shapes, size)
    extra = again_flops(shapes, size)
    if spec.bias == "l2":
        parts = 1 + spec.has_momentum + (spec.decay_to == "initial")
        forward += 2.0 * size * rows * columns * parts + 2.0 * size**2 * rows
        extra += 2.0 * size**2 * columns  # the solve's derivative with respect to its matrix is a product
    return with_coefficients(forward, extra, spec, size, decay)


def step_flops(spec: MemorySpec, shapes: Sequence[Sequence[int]], size: int) -> float:
    """Moving the memory to the end of a tile."""
    ((rows, columns),) = shapes
    return 2.0 * size * rows * columns * (1 + spec.has_momentum)


def edges(spec: MemorySpec, shapes: Sequence[Sequence[int]], sizes: Sequence[int]) -> float:
    """Nothing flows back from the last memory, nor into the first velocity, which is zero."""
    ((rows, columns),) = shapes
    spared = 2 * step_flops(spec, shapes, sizes[-1])
    if spec.has_momentum and spec.bias == "l2":
        spared += 2.0 * sizes[0] * rows * columns
    return -spared
