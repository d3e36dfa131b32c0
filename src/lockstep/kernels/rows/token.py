"""Where our kernel makes the rows of one token, as decoding asks for them, and writes over the tail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.kernels.backends import ours_may_decode
from lockstep.kernels.rows.choice import fits


def takes(projected: Tensor, width: int, taps: int) -> bool:
    """Whether it should run on projections [batch, time, parts × heads × width]: one token each, and no derivative.

    Whether the tail may be written over is the caller's to know.
    """
    known = projected.dtype in (torch.bfloat16, torch.float32) and fits(width, taps)
    return known and ours_may_decode(projected, projected.shape[1])


class Gating(NamedTuple):
    """What a memory's gates are made of, see `NeuralMemory.gate_values`."""

    x: Tensor  # [batch, 1, dim]
    weight: Tensor  # [gates × heads, dim]
    bias: Tensor  # [gates × heads]
    decay: bool
    """Whether the first is there: without it everything is kept."""
    threshold: bool
    """Whether the last is a threshold."""
    largest: float
    """Rate."""


def run(
    projected: Tensor,
    weight: Tensor,
    tail: Tensor,
    bias: Tensor | None,
    heads: Sequence[int],
    lengths: Sequence[float],
    epsilon: float,
    gating: Gating | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Of each part its rows [batch, heads, 1, width], and gates [gates, batch, heads, 1]; the tail is written over.

    Projections are [batch, 1, all heads × width], the weight [taps, all heads × width], the tail [batch, taps - 1, all
    heads × width]. Vectors are given their part's length, where that is not 0, and are of the projections' precision,
    if no other is asked for.
    """
    # Triton is needed where it is used alone.
    from lockstep.kernels.rows.token_operator import token_rows_

    gated = (None,) * 3 if gating is None else (gating.x[:, 0].contiguous(), gating.weight, gating.bias)
    kind = (True, False, 0.0) if gating is None else gating[3:]
    rows, gates = token_rows_(
        projected[:, 0].contiguous(), weight, tail, bias, *gated, list(heads), list(lengths), epsilon, *kind, dtype
    )
    batch, width = len(projected), projected.shape[-1] // sum(heads)
    parts = rows.split([batch * count * width for count in heads])
    return [part.view(batch, -1, 1, width) for part in parts], gates[..., None]
