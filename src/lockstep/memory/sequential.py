"""The definition: one token after another, each gradient by automatic differentiation, every weight in full.

Slow, and meant to be read: the other forms are compared with this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from lockstep.memory.biases import clipped, output_gradient
from lockstep.memory.chunked import Tokens
from lockstep.memory.retentions import Retained
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import Affine, head, network, recall
from lockstep.memory.types import Memory, Weights

Vjp = tuple[Tensor, Callable[[Tensor], Weights]]
"""A value, and what sends a gradient at it back to the arguments."""


def sequential(
    tokens: Tokens, memory: Memory, spec: MemorySpec, affine: Affine, anchor: Weights | None
) -> tuple[Tensor, Memory]:
    """Reads [1, rows, time, value_dim] of tokens [1, rows, time, …], and the memory after the last of them."""
    held, velocity = memory
    reads = []
    retained: list[Retained] = []
    for t in range(tokens.keys.shape[2]):
        if t % spec.chunk == 0:
            retained = [Retained(matrix, spec) for matrix in held]
        query, key, value = (x[0, :, t : t + 1] for x in tokens[:3])
        keep, rate, momentum, threshold = (None if gate is None else gate[0, :, t : t + 1] for gate in tokens.gates)
        if spec.read == "before":
            reads.append(recall(query, current(retained, held), spec, affine))
        at_start = tuple(matrix.weights for matrix in retained)
        found = gradients(key, value, threshold, at_start, spec, affine)
        steps = tuple(-scaled(rate, gradient) for gradient in found)
        if velocity is not None:
            steps = velocity = tuple(scaled(momentum, old) + step for old, step in zip(velocity, steps, strict=True))
        if anchor is None:
            held = tuple(scaled(keep, old) + step for old, step in zip(held, steps, strict=True))
        else:
            parts = zip(held, steps, anchor, strict=True)
            held = tuple(target + scaled(keep, old - target) + step for old, step, target in parts)
        if spec.read == "after":
            reads.append(recall(query, current(retained, held), spec, affine))
    return torch.cat(reads, dim=-2)[None], Memory(held, velocity)


def scaled(gate: Tensor | None, matrix: Tensor) -> Tensor:
    """A gate [rows, 1] times a matrix [rows, in, out]."""
    assert gate is not None
    return gate[..., None] * matrix


def current(retained: list[Retained], held: Weights) -> Weights:
    """The weights inside a chunk."""
    return tuple(start.at(matrix) for start, matrix in zip(retained, held, strict=True))


def gradients(
    key: Tensor, value: Tensor, threshold: Tensor | None, weights: Weights, spec: MemorySpec, affine: Affine
) -> Weights:
    """The gradient of one token's loss in each matrix, [..., in, out]."""
    # torch's stubs say that vjp gives three things; it gives two.
    z, through_network = cast(Vjp, torch.func.vjp(lambda *matrices: network(key, matrices, spec), *weights))
    said, through_head = cast(Vjp, torch.func.vjp(lambda z: head(key, z, spec, affine), z))
    (error,) = through_head(output_gradient(spec, said, value, threshold))
    return through_network(clipped(error, spec.clip))
