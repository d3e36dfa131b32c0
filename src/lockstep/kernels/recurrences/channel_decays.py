"""What the gates of a chunk leave in each channel, as logarithms to the base 2, and how tokens meet in pairs.

Between two tokens of a chunk there is one span of 2, 4, 8 … tokens that has them in different halves. What is kept from
one to the other is cut at its middle: one factor goes to the later token, one to the earlier, and neither is more than
one. So a level of halves, of 2 ** level tokens each, is a matrix product of all tokens of a chunk, each with the one
factor it has there, and nothing overflows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.recurrences.decays import LEAST, LOG2_E

COLUMNS = 64
"""Channels of a program, of all heads side by side."""


def channel_decays(log_keep: Tensor, chunk: int) -> Tensor:
    """Kept from the start of a chunk to each token; log_keep [batch, time, heads, key_dim], in whole chunks."""
    since = torch.empty_like(log_keep)
    batch, time, heads, key_dim = log_keep.shape
    channels = heads * key_dim
    grid = (batch * time // chunk, triton.cdiv(channels, COLUMNS))
    channel_decays_kernel[grid](log_keep, since, channels, CHUNK=chunk, COLUMNS=COLUMNS)
    return since


@triton.jit
def channel_decays_kernel(
    log_keep: tl.tensor,  # [batch × time, channels]
    since: tl.tensor,
    channels: int,
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """A program has one chunk, and some of its channels."""
    token = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place, there = token[:, None] * channels + channel[None, :], (channel < channels)[None, :]
    gate = tl.maximum(tl.load(log_keep + place, mask=there, other=0.0), LEAST)
    tl.store(since + place, tl.cumsum(gate * LOG2_E, axis=0), mask=there)


@triton.jit
def of_rows(numbers: tl.tensor, rows: tl.tensor, stride: int, width: int, COLUMNS: tl.constexpr) -> tl.tensor:
    """Rows of a matrix whose rows are `stride` apart, [rows, COLUMNS]; after the first `width` numbers come zeros."""
    column = tl.arange(0, COLUMNS)[None, :]
    return tl.load(numbers + rows[:, None] * stride + column, mask=column < width, other=0.0)


@triton.jit
def to_the_edge(
    since: tl.tensor, total: tl.tensor, stride: int, width: int, CHUNK: tl.constexpr, BACKWARDS: tl.constexpr
) -> tl.tensor:
    """Kept from a chunk's start to each token; backwards, from each token to its end."""
    if BACKWARDS:
        total = of_rows(since, tl.arange(0, 1) + CHUNK - 1, stride, width, total.shape[1]) - total
    return tl.exp2(total)


@triton.jit
def to_the_middle(since: tl.tensor, total: tl.tensor, stride: int, width: int, level: int) -> tl.tensor:
    """Kept between each token and the middle of its span of two halves; total [tokens, channels] as in memory."""
    half = tl.arange(0, total.shape[0]) >> level
    middle = of_rows(since, ((half | 1) << level) - 1, stride, width, total.shape[1])
    return tl.exp2(tl.where(is_later(total.shape[0], level)[:, None], total - middle, middle - total))


@triton.jit
def is_later(CHUNK: tl.constexpr, level: int) -> tl.tensor:
    """Whether tokens are in the second half of their span."""
    return ((tl.arange(0, CHUNK) >> level) & 1) == 1


@triton.jit
def are_apart(CHUNK: tl.constexpr, level: int) -> tl.tensor:
    """Whether two tokens are in different halves of one span, [CHUNK, CHUNK]."""
    half = tl.arange(0, CHUNK) >> level
    return half[:, None] == (half ^ 1)[None, :]


@triton.jit
def may_read(CHUNK: tl.constexpr, BACKWARDS: tl.constexpr) -> tl.tensor:
    """Whether a row's token reads of a column's, itself or one before, [CHUNK, CHUNK]; backwards, or one after."""
    row, column = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    return row <= column if BACKWARDS else row >= column
