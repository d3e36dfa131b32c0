"""Reading inside a chunk: a matrix of the memory, as it stands after each token, applied to that token's row.

z_t = b_t (x_t W) + x_t base + (1 - b_t)(x_t anchor) + f_t (x_t S) - Σ_s C[t,s] (x_t·k_s) e_s
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.memory.derivatives import only_first
from lockstep.memory.types import exactly

Part = Tensor | None


class Matrix(NamedTuple):
    """What a chunk's reads need of one matrix, or the adjoints of that; rows come first in every tensor."""

    weights: Tensor  # W [rows, in, out], what is held at the chunk's start, as weights
    inputs: Tensor  # k [rows, time, in], what the keys fed to it
    errors: Tensor  # e [rows, time, out], the gradients at its outputs, as weights follow them
    velocity: Part = None  # S [rows, in, out]
    anchor: Part = None  # [rows, in, out], where forgetting leads, as weights
    base: Part = None  # [rows, in, out], what does not follow what is held


class Shares(NamedTuple):
    """How much of each part a token finds, or the adjoints of that."""

    kept: Tensor  # b [rows, time, 1]
    written: Tensor  # C [rows, time, time]
    carried: Part = None  # f [rows, time, 1]


def applied(x: Tensor, matrix: Matrix, shares: Shares) -> Tensor:
    """Rows x [rows, time, in] through the memory as it stands at each."""
    z = torch.bmm(x, matrix.weights).mul_(shares.kept)
    if matrix.velocity is not None and shares.carried is not None:
        z.addcmul_(torch.bmm(x, matrix.velocity), shares.carried)
    if matrix.anchor is not None:
        z.addcmul_(torch.bmm(x, matrix.anchor), 1 - shares.kept)
    if matrix.base is not None:
        z.baddbmm_(x, matrix.base)
    scores = torch.bmm(x, matrix.inputs.mT).mul_(shares.written)
    return torch.baddbmm(z, scores, matrix.errors, alpha=-1)  # out of place: see `advanced` of `trace`


def through_applied(bar: Tensor, x: Tensor, matrix: Matrix, shares: Shares) -> tuple[Tensor, Matrix, Shares]:
    """The adjoints of x, of the matrix and of the shares, given that of the result."""
    scores = torch.bmm(x, matrix.inputs.mT)
    products_bar = torch.bmm(bar, matrix.errors.mT).neg_()
    errors_bar = torch.bmm((scores * shares.written).mT, bar).neg_()
    written_bar = scores.mul_(products_bar)
    scores_bar = products_bar.mul_(shares.written)
    inputs_bar = torch.bmm(scores_bar.mT, x)
    x_bar = torch.bmm(scores_bar, matrix.inputs)

    def share(part: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The adjoints of a part and of its share; that of x is added up."""
        back = torch.bmm(bar, part.mT)
        x_bar.addcmul_(back, weight)
        return torch.bmm(x.mT, bar * weight), (x * back).sum(dim=-1, keepdim=True)

    weights_bar, kept_bar = share(matrix.weights, shares.kept)
    velocity_bar = carried_bar = anchor_bar = base_bar = None
    if matrix.velocity is not None and shares.carried is not None:
        velocity_bar, carried_bar = share(matrix.velocity, shares.carried)
    if matrix.anchor is not None:
        anchor_bar, left_bar = share(matrix.anchor, 1 - shares.kept)
        kept_bar.sub_(left_bar)
    if matrix.base is not None:
        base_bar = torch.bmm(x.mT, bar)
        x_bar.baddbmm_(bar, matrix.base.mT)
    bars = Matrix(weights_bar, inputs_bar, errors_bar, velocity_bar, anchor_bar, base_bar)
    return x_bar, bars, Shares(kept_bar, written_bar, carried_bar)


def apply(x: Tensor, matrix: Matrix, shares: Shares) -> Tensor:
    """`applied` as one differentiable operation."""
    z: Tensor = _Apply.apply(x, *matrix, *shares)  # type: ignore[no-untyped-call] # torch leaves apply untyped
    return z


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parts: Any) -> Tensor:
        ctx.save_for_backward(x, *parts)
        return applied(x, Matrix(*parts[:6]), Shares(*parts[6:]))

    @staticmethod
    @only_first
    def backward(ctx: Any, bar: Tensor) -> tuple[Part, ...]:
        x, *parts = ctx.saved_tensors
        with exactly(x.device):
            x_bar, matrix_bar, shares_bar = through_applied(bar, x, Matrix(*parts[:6]), Shares(*parts[6:]))
        return (x_bar, *matrix_bar, *shares_bar)
