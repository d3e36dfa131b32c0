"""Comparing outputs, with messages that say how far apart they are and where."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.laws.law import LawBroken
from lockstep.models.state import State, map_state, named_tensors

EXACT = 1e-12
"""Relative difference, in float64, of outputs that come from the same arithmetic in another shape."""
CLOSE = 1e-9
"""The same where two orders of summation must agree, as step and forward do."""


def gap(actual: Tensor, expected: Tensor) -> Tensor:
    """The largest difference per position, [batch, time], relative to the largest expected logit."""
    scale = expected.detach().abs().amax().clamp_min(1e-30)
    # Without this a NaN would compare as no difference at all.
    if not torch.isfinite(actual).all() or not torch.isfinite(expected).all():
        raise LawBroken(f"logits of shape {shape(actual)} hold NaN or infinity")
    return ((actual - expected).abs().amax(dim=-1) / scale).detach()


def require_equal(actual: Tensor, expected: Tensor, what: str, tolerance: float = CLOSE) -> None:
    """Logits [batch, time, vocab] must agree; `what` says which two were compared."""
    if actual.shape != expected.shape:
        raise LawBroken(f"{what}: shape {shape(actual)}, expected {shape(expected)}")
    if actual.numel() == 0:
        return
    apart = gap(actual, expected)
    worst = int(apart.argmax())
    row, position = divmod(worst, apart.shape[1])
    largest = float(apart.flatten()[worst])
    if largest > tolerance:
        raise LawBroken(f"{what}: relative difference {largest:.1e} in row {row} at position {position}")


def require_same_state(actual: State, expected: State, what: str) -> None:
    """Two states must be equal bit for bit."""
    for (name, one), (_, other) in zip(named_tensors(actual), named_tensors(expected), strict=True):
        if one.shape != other.shape or not torch.equal(one, other):
            raise LawBroken(f"{what}: {name} is not what it was")


def cloned(state: State) -> State:
    """A copy that later changes cannot reach."""
    return map_state(lambda tensor: tensor.clone(), state)


def shape(tensor: Tensor) -> str:
    return "×".join(str(size) for size in tensor.shape)
