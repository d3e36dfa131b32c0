"""Where our kernel makes the rows of one token, as decoding asks for them, and writes over the tail."""

from __future__ import annotations

from collections.abc import Sequence

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


def run(
    projected: Tensor,
    weight: Tensor,
    tail: Tensor,
    bias: Tensor | None,
    heads: Sequence[int],
    lengths: Sequence[float],
    epsilon: float,
    dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Of each part its rows [batch, heads, 1, width]; the tail is written over.

    Projections are [batch, 1, all heads × width], the weight [taps, all heads × width], the tail [batch, taps - 1, all
    heads × width]. Vectors are given their part's length, where that is not 0, and are of the projections' precision,
    if no other is asked for.
    """
    # Triton is needed where it is used alone.
    from lockstep.kernels.rows.token_operator import token_rows_

    rows: Tensor = token_rows_(
        projected[:, 0].contiguous(), weight, tail, bias, list(heads), list(lengths), epsilon, dtype
    )
    batch, width = len(projected), projected.shape[-1] // sum(heads)
    parts = rows.split([batch * count * width for count in heads])
    return [part.view(batch, -1, 1, width) for part in parts]
