"""What the gates of a chunk leave of what was written before and in it, and the adjoints of the gates.

All shares are logarithms to the base 2, as the exponential of a GPU takes them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LEAST = tl.constexpr(math.log(torch.finfo(torch.float32).tiny))
"""Below this nothing is kept that a number could hold, and larger sums would cost the others their digits."""
LOG2_E = tl.constexpr(math.log2(math.e))
TOGETHER = 16
"""Chunks of a program."""


class Decays(NamedTuple):
    """Of each token of a chunk, [batch, heads, time]."""

    since: Tensor
    """Kept from the chunk's start to the token."""
    until: Tensor
    """Kept from the token to the chunk's end."""


class Shares(NamedTuple):
    """What each token's adjoint says of the gates, by key blocks: [blocks, batch, heads, time]."""

    near: Tensor
    """By way of other tokens of the chunk."""
    far: Tensor
    """By way of the state at the chunk's start or end."""


def decays(log_keep: Tensor, chunk: int) -> Decays:
    """Of log_keep [batch, heads, time], in whole chunks."""
    found = Decays(torch.empty_like(log_keep), torch.empty_like(log_keep))
    grid, sizes = launch(log_keep, chunk)
    decays_kernel[grid](log_keep, *found, **sizes)
    return found


def through_decays(
    log_keep: Tensor, found: Decays, of_queries: Shares, of_keys: Shares, crossing: Tensor, chunk: int
) -> Tensor:
    """The adjoint of log_keep; crossing [blocks, batch, heads, chunks] are states at starts times adjoints at ends."""
    log_keep_bar = torch.empty_like(log_keep)
    grid, sizes = launch(log_keep, chunk)
    through_decays_kernel[grid](
        log_keep, found.since, *of_queries, *of_keys, crossing, log_keep_bar, BLOCKS=crossing.shape[0], **sizes
    )
    return log_keep_bar


def launch(log_keep: Tensor, chunk: int) -> tuple[tuple[int], dict[str, Any]]:
    """How many programs, and the sizes they are given."""
    chunks = log_keep.numel() // chunk
    return (triton.cdiv(chunks, TOGETHER),), {"chunks": chunks, "CHUNK": chunk, "TOGETHER": TOGETHER, "num_warps": 4}


@triton.jit
def own_chunks(chunks: int, TOGETHER: tl.constexpr) -> tl.tensor:
    """A program's chunks, [TOGETHER, 1]; after the last of all comes the last again, which does no harm."""
    chunk = tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)
    return tl.minimum(chunk, chunks - 1).to(tl.int64)[:, None]


@triton.jit
def decays_kernel(
    log_keep: tl.tensor,  # [batch, heads, time]
    since: tl.tensor,
    until: tl.tensor,
    chunks: int,
    CHUNK: tl.constexpr,
    TOGETHER: tl.constexpr,
) -> None:
    token = tl.arange(0, CHUNK)[None, :]
    place = own_chunks(chunks, TOGETHER) * CHUNK + token
    gate = tl.maximum(tl.load(log_keep + place), LEAST)
    tl.store(since + place, tl.cumsum(gate * LOG2_E, axis=1))
    # Without a token's own gate, which is over when the token writes.
    next_gate = tl.maximum(tl.load(log_keep + place + 1, mask=token < CHUNK - 1, other=0.0), LEAST)
    tl.store(until + place, tl.cumsum(next_gate * LOG2_E, axis=1, reverse=True))


@triton.jit
def through_decays_kernel(
    log_keep: tl.tensor,  # [batch, heads, time]
    since: tl.tensor,
    near_queries: tl.tensor,  # [BLOCKS, batch, heads, time]
    far_queries: tl.tensor,
    near_keys: tl.tensor,
    far_keys: tl.tensor,
    crossing: tl.tensor,  # [BLOCKS, batch, heads, chunks]
    log_keep_bar: tl.tensor,  # [batch, heads, time]
    chunks: int,
    CHUNK: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """A gate counts for all that crosses it: what is read later of what was there before, and what goes through.

    Reads after a gate find the state of the start through it, and the end finds writes before it; within the chunk it
    is what later tokens read less what later tokens wrote, because pairs on the same side are in both.
    """
    chunk = own_chunks(chunks, TOGETHER)
    token = tl.arange(0, CHUNK)[None, :]
    place = chunk * CHUNK + token
    later = tl.zeros([TOGETHER, CHUNK], tl.float32)
    earlier = tl.zeros([TOGETHER, CHUNK], tl.float32)
    through = tl.zeros([TOGETHER, 1], tl.float32)
    for _ in tl.static_range(BLOCKS):
        later += tl.load(near_queries + place) + tl.load(far_queries + place) - tl.load(near_keys + place)
        earlier += tl.load(far_keys + place - 1, mask=token > 0, other=0.0)
        through += tl.load(crossing + chunk)
        near_queries += chunks * CHUNK
        far_queries += chunks * CHUNK
        near_keys += chunks * CHUNK
        far_keys += chunks * CHUNK
        crossing += chunks
    through *= tl.exp2(tl.load(since + chunk * CHUNK + CHUNK - 1))
    bar = tl.cumsum(later, axis=1, reverse=True) + tl.cumsum(earlier, axis=1) + through
    # Where a gate was raised to the least, nothing hangs on it.
    tl.store(log_keep_bar + place, tl.where(tl.load(log_keep + place) < LEAST, 0.0, bar))
