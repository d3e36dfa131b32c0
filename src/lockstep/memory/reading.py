"""The reads of all chunks at once: one matrix of the memory, as it stands after each token, applied to that token's row.

    z_t = b_t (x_t W) + x_t base + (1 - b_t)(x_t anchor) + f_t (x_t S) - Σ_s C[t,s] (x_t·k_s) e_s

One differentiable operation, because its parts share what the derivative needs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

Part = Tensor | None


class Matrix(NamedTuple):
    """What a chunk's reads need of one matrix; a batch of chunks and rows comes first in every tensor."""

    weights: Tensor  # W [.., in, out], what is held at the chunk's start, as weights
    inputs: Tensor  # k [.., time, in], what the keys fed to it
    errors: Tensor  # e [.., time, out], the gradients at its outputs, as weights follow them
    velocity: Part = None  # S [.., in, out]
    anchor: Part = None  # [.., in, out], where forgetting leads, as weights
    base: Part = None  # [.., in, out], what does not follow what is held


class Shares(NamedTuple):
    """How much of each part a token finds: columns [.., time, 1], and [.., time, time] of the writes."""

    kept: Tensor  # b
    written: Tensor  # C
    carried: Part = None  # f


def apply(x: Tensor, matrix: Matrix, shares: Shares) -> Tensor:
    """Rows x [.., time, in] through the memory as it stands at each of them."""
    z: Tensor = _Apply.apply(x, *matrix, *shares)  # type: ignore[no-untyped-call] # torch leaves apply untyped
    return z


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parts: Part) -> Tensor:
        matrix, shares = Matrix(*parts[:6]), Shares(*parts[6:])  # type: ignore[arg-type] # the first of each are always there
        z = torch.bmm(x, matrix.weights).mul_(shares.kept)
        if matrix.velocity is not None:
            z.addcmul_(torch.bmm(x, matrix.velocity), shares.carried)
        if matrix.anchor is not None:
            z.addcmul_(torch.bmm(x, matrix.anchor), 1 - shares.kept)
        if matrix.base is not None:
            z.baddbmm_(x, matrix.base)
        scores = torch.bmm(x, matrix.inputs.mT)
        z.baddbmm_(scores * shares.written, matrix.errors, alpha=-1)
        ctx.save_for_backward(x, scores, *parts)
        return z

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> tuple[Part, ...]:  # type: ignore[override] # one output
        x, scores, *parts = ctx.saved_tensors
        matrix, shares = Matrix(*parts[:6]), Shares(*parts[6:])
        found = dict.fromkeys((*Matrix._fields, *Shares._fields))

        def share(part: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            """The adjoints of a matrix and of its share; that of x is added up."""
            back = torch.bmm(bar, part.mT)
            x_bar.addcmul_(back, weight)
            return torch.bmm(x.mT, bar * weight), (x * back).sum(dim=-1, keepdim=True)

        x_bar = torch.zeros_like(x)
        found["weights"], kept_bar = share(matrix.weights, shares.kept)
        if matrix.velocity is not None:
            found["velocity"], found["carried"] = share(matrix.velocity, shares.carried)
        if matrix.anchor is not None:
            found["anchor"], left_bar = share(matrix.anchor, 1 - shares.kept)
            kept_bar -= left_bar
        if matrix.base is not None:
            found["base"] = torch.bmm(x.mT, bar)
            x_bar.baddbmm_(bar, matrix.base.mT)
        products_bar = torch.bmm(bar, matrix.errors.mT).neg_()
        found["errors"] = torch.bmm((scores * shares.written).mT, bar).neg_()
        found["written"] = products_bar * scores
        scores_bar = products_bar.mul_(shares.written)
        found["inputs"] = torch.bmm(scores_bar.mT, x)
        x_bar.baddbmm_(scores_bar, matrix.inputs)
        found["kept"] = kept_bar
        return (x_bar, *found.values())
