"""Attentional biases: each maps the error of a read to the gradient at the memory's output."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.memory.spec import MemorySpec

SMOOTH = 1e-6
"""Rounds |e| off at zero, where a loss has a corner: sqrt(e² + SMOOTH)."""


def output_gradient(spec: MemorySpec, output: Tensor, values: Tensor, threshold: Tensor | None) -> Tensor:
    """The gradient of the inner loss at the output; output and values [..., dim], threshold [...]."""
    if spec.bias == "dot":
        return -values
    error = output - values
    if spec.bias == "l2":
        return error
    if spec.bias == "lp":
        return power(error, spec.p)
    assert threshold is not None
    return huber(error, threshold[..., None], spec)


def power(error: Tensor, p: float) -> Tensor:
    """The gradient of (1/p)·Σ|e|^p, which has a corner at zero only below p = 2."""
    if p == 2:
        return error
    if p < 2:
        return error * (error.square() + SMOOTH) ** ((p - 2) / 2)
    return error.sign() * error.abs() ** (p - 1)


def huber(error: Tensor, threshold: Tensor, spec: MemorySpec) -> Tensor:
    """Quadratic within the threshold [..., 1] and linear beyond it, in one of MIRAS's three readings."""
    if spec.huber_form == "coordinate":
        return torch.minimum(torch.maximum(error, -threshold), threshold)
    norm = length(error)
    beyond = threshold * error / norm if spec.huber_form == "norm" else threshold * power(error, 1.0)
    return torch.where(norm <= threshold, error, beyond)


def clipped(gradient: Tensor, limit: float | None) -> Tensor:
    """The gradient [..., dim], shortened where it is longer than the limit."""
    if limit is None:
        return gradient
    return gradient * (limit / length(gradient)).clamp_max(1.0)


def length(error: Tensor) -> Tensor:
    """The norm [..., 1], away from zero, where its own gradient would be infinite."""
    return (error.square().sum(dim=-1, keepdim=True) + torch.finfo(error.dtype).tiny).sqrt()
