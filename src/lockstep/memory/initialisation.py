"""How a memory begins: its first weights, and how fast it may learn."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from lockstep.memory.retentions import Retained, lq_norm
from lockstep.memory.spec import MemorySpec
from lockstep.memory.structures import Affine, writes

SAMPLES = 256
"""Keys over which the sensitivity of a memory is averaged."""


def draw_weights(spec: MemorySpec, heads: int, head_dim: int, generator: torch.Generator | None = None) -> list[Tensor]:
    """What is held at first, [heads, in, out] per matrix, drawn so that unit keys give activations of order one."""
    hidden = spec.expansion * head_dim
    widths = [head_dim, *[hidden] * (spec.layers - 1), head_dim]
    drawn = []
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        noise = torch.randn(heads, inputs, outputs, generator=generator, device="cpu")
        # A unit key has the norm 1, not the root of its width.
        wanted = 1.0 if layer == 0 and spec.layers > 1 else inputs**-0.5
        drawn.append(held_for(noise, wanted, spec))
    return drawn


def held_for(noise: Tensor, wanted: float, spec: MemorySpec) -> Tensor:
    """What must be held for weights of the wanted size."""
    if spec.retention == "kl":
        return noise  # rows of the simplex have one size
    if spec.retention == "lq" and spec.q != 3:
        # W = A / ‖A‖^(q-2), so that A = c × noise gives W = c^(3-q) × noise / ‖noise‖^(q-2).
        scale = (wanted * lq_norm(noise, spec.q) ** (spec.q - 2)) ** (1 / (3 - spec.q))
        return noise * scale
    return noise * wanted


def sensitivity(spec: MemorySpec, head_dim: int, gain: float) -> float:
    """How far one step of rate 1 on a unit error moves what the memory says for that key, at its first weights.

    The curvature of the inner loss: 1 for a plain linear memory, and what its width, activation, norm and retention
    make of it otherwise. Averaged over random unit keys and errors.
    """
    generator = torch.Generator().manual_seed(0)
    retained = [Retained(matrix[0], spec) for matrix in draw_weights(spec, 1, head_dim, generator)]
    keys, errors = torch.randn(2, SAMPLES, head_dim, generator=generator, device="cpu")
    keys, errors = torch.nn.functional.normalize(keys, dim=-1), torch.nn.functional.normalize(errors, dim=-1)
    # An inner product's gradient is minus the value: with it any error can be sent back through the structure.
    sending = spec.model_copy(update={"bias": "dot", "clip": None})
    affine = Affine(torch.full((head_dim,), gain, device="cpu")) if spec.norm else Affine()
    made = writes(keys, -errors, None, tuple(start.weights for start in retained), sending, affine)
    moved = torch.zeros(SAMPLES, device="cpu")
    for start, inputs, sent in zip(retained, made.inputs, made.errors, strict=True):
        moved += inputs.square().sum(-1) * (sent * start.follow(sent)).sum(-1)
    return float(moved.mean())


def stable_rate(spec: MemorySpec, head_dim: int, gain: float, momentum: float) -> float:
    """The rate at which a chunk that repeats one key corrects its error once, and no more.

    All gradients of a chunk are taken at its start, so that their sum must not overshoot: with momentum a write ends up
    1 / (1 - momentum) as strong, and a chunk makes `chunk` of them.
    """
    return (1 - momentum) / (spec.chunk * sensitivity(spec, head_dim, gain))
