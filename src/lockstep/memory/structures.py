"""What a memory computes: a matrix, or matrices with an activation between them, and its derivative by hand.

Tensors are [..., time, dim]; weights [..., in, out] stand at the right. `head` is what follows the last matrix:
the optional norm and residual.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from lockstep.memory.activations import activate, with_slope
from lockstep.memory.biases import clipped, output_gradient
from lockstep.memory.spec import MemorySpec
from lockstep.memory.types import Weights

EPSILON = 1e-5
"""Of the norm: it bounds how much a dying memory's gradient is amplified."""


class Affine(NamedTuple):
    """The norm's outer parameters, shaped to broadcast over [..., time, dim]."""

    gain: Tensor | None = None
    shift: Tensor | None = None

    def apply(self, x: Tensor) -> Tensor:
        x = x if self.gain is None else x * self.gain
        return x if self.shift is None else x + self.shift


class Writes(NamedTuple):
    """Per matrix, its inputs x and the gradients d at its outputs: a token's gradient is the outer product of both."""

    inputs: Weights  # [..., time, in] each
    errors: Weights  # [..., time, out] each


def network(x: Tensor, weights: Weights, spec: MemorySpec) -> Tensor:
    """The matrices alone, before the head."""
    *hidden, last = weights
    for matrix in hidden:
        x = activate(x @ matrix, spec.activation)
    return x @ last


def head(x: Tensor, z: Tensor, spec: MemorySpec, affine: Affine) -> Tensor:
    """What the memory says for the key or query x, given what its network says."""
    if spec.norm:
        z = affine.apply(F.layer_norm(z, z.shape[-1:], eps=EPSILON))
    return x + z if spec.residual else z


def recall(queries: Tensor, weights: Weights, spec: MemorySpec, affine: Affine) -> Tensor:
    """A read: the memory applied to queries, nothing written."""
    return head(queries, network(queries, weights, spec), spec, affine)


def writes(
    keys: Tensor, values: Tensor, threshold: Tensor | None, weights: Weights, spec: MemorySpec, affine: Affine
) -> Writes:
    """The gradients of all tokens at these weights, in factored form."""
    inputs, slopes = [keys], []
    for matrix in weights[:-1]:
        value, slope = with_slope(inputs[-1] @ matrix, spec.activation)
        inputs.append(value)
        slopes.append(slope)
    errors = [last_error(keys, inputs[-1] @ weights[-1], values, threshold, spec, affine)]
    for matrix, slope in zip(reversed(weights[1:]), reversed(slopes), strict=True):
        errors.append((errors[-1] @ matrix.mT) * slope)
    return Writes(tuple(inputs), tuple(reversed(errors)))


def last_error(
    keys: Tensor, z: Tensor, values: Tensor, threshold: Tensor | None, spec: MemorySpec, affine: Affine
) -> Tensor:
    """The gradient at the output of the last matrix, clipped."""
    normal = normalised(z) if spec.norm else None
    said = z if normal is None else affine.apply(normal.values)
    gradient = output_gradient(spec, keys + said if spec.residual else said, values, threshold)
    if normal is not None:
        gradient = through_norm(gradient if affine.gain is None else gradient * affine.gain, normal)
    return clipped(gradient, spec.clip)


class Normalised(NamedTuple):
    values: Tensor
    scale: Tensor
    """One over the standard deviation."""


def normalised(z: Tensor) -> Normalised:
    centred = z - z.mean(dim=-1, keepdim=True)
    scale = (centred.square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt()
    return Normalised(centred * scale, scale)


def through_norm(gradient: Tensor, normal: Normalised) -> Tensor:
    """The gradient before the norm, given the one after it."""
    along = (gradient * normal.values).mean(dim=-1, keepdim=True)
    return (gradient - gradient.mean(dim=-1, keepdim=True) - normal.values * along) * normal.scale
