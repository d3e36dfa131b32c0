"""The kernel of `token`, as an operator that writes over the state."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.record import record
from lockstep.kernels.succession import started
from lockstep.kernels.waiting import await_the_one_before

NAME = "recurrence token"
BLOCKS = (64, 32, 16)
"""Columns of a state that a program may have, which need nothing of each other."""
LARGEST = 8192
"""Numbers of a state in a program, at most: what registers hold."""
PROGRAMS = 128
"""As many as a large device has multiprocessors."""


@triton.jit
def recur_kernel(
    queries: tl.tensor,  # [batch × groups, key_dim]
    keys: tl.tensor,
    values: tl.tensor,  # [batch × heads, value_dim]
    log_keep: tl.tensor,  # [batch × heads], or of each channel [batch × heads, key_dim]
    rate: tl.tensor,  # [batch × heads]
    state: tl.tensor,  # [batch × heads, key_dim, value_dim]: written over
    reads: tl.tensor,  # as the values: what comes out
    sharing: int,
    key_dim: int,
    value_dim: int,
    blocks: int,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """One program is one block of columns of one state; `sharing` heads have keys in common."""
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    channel, column = tl.arange(0, KEYS), block * BLOCK + tl.arange(0, BLOCK)
    a_key, a_value = channel < key_dim, column < value_dim
    place = row * key_dim * value_dim + channel[:, None] * value_dim + column[None, :]
    held = tl.load(state + place, mask=a_key[:, None] & a_value[None, :], other=0.0)
    await_the_one_before(OVERLAPS)
    query = tl.load(queries + row // sharing * key_dim + channel, mask=a_key, other=0.0).to(tl.float32)[:, None]
    key = tl.load(keys + row // sharing * key_dim + channel, mask=a_key, other=0.0).to(tl.float32)[:, None]
    value = tl.load(values + row * value_dim + column, mask=a_value, other=0.0).to(tl.float32)
    if log_keep is not None:
        if CHANNELS:
            held *= tl.exp(tl.load(log_keep + row * key_dim + channel, mask=a_key, other=0.0).to(tl.float32))[:, None]
        else:
            held *= tl.exp(tl.load(log_keep + row).to(tl.float32))
    if rate is not None:
        value = (value - tl.sum(key * held, axis=0)) * tl.load(rate + row).to(tl.float32)
    held += key * value[None, :]
    tl.store(state + place, held, mask=a_key[:, None] & a_value[None, :])
    tl.store(reads + row * value_dim + column, tl.sum(query * held, axis=0), mask=a_value)


def columns(rows: int, key_dim: int, value_dim: int) -> int:
    """Of a program: as many as registers hold, and as leave enough programs."""
    most = LARGEST // triton.next_power_of_2(key_dim)
    for block in BLOCKS:
        if block <= most and rows * -(-value_dim // block) >= PROGRAMS:
            return block
    return BLOCKS[-1]


@torch.library.custom_op(
    "lockstep::recur_",
    mutates_args=("state",),
    schema="(Tensor queries, Tensor keys, Tensor values, Tensor? log_keep, Tensor? rate, Tensor(a!) state) -> Tensor",
)
def recur_(
    queries: Tensor, keys: Tensor, values: Tensor, log_keep: Tensor | None, rate: Tensor | None, state: Tensor
) -> Tensor:
    """Reads [batch, heads, value_dim] in 32 bits, as `token.run` says, of tensors without time, each in one piece."""
    record(NAME)
    if not state.is_contiguous():
        raise ValueError("a state that is written over must be in one piece")
    batch, heads, key_dim, value_dim = state.shape
    reads = state.new_empty(batch, heads, value_dim)
    block = columns(batch * heads, key_dim, value_dim)
    blocks = -(-value_dim // block)
    recur_kernel[(batch * heads * blocks,)](
        queries,
        keys,
        values,
        log_keep,
        rate,
        state,
        reads,
        heads // keys.shape[1],
        key_dim,
        value_dim,
        blocks,
        KEYS=triton.next_power_of_2(key_dim),
        BLOCK=block,
        CHANNELS=log_keep is not None and log_keep.ndim == 3,
        num_warps=4,
        **started(reads),
    )
    return reads


@recur_.register_fake
def _(
    queries: Tensor, keys: Tensor, values: Tensor, log_keep: Tensor | None, rate: Tensor | None, state: Tensor
) -> Tensor:
    return state.new_empty(values.shape)
