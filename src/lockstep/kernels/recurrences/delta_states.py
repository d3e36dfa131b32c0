"""The memory's way from chunk to chunk, and its adjoint's way back: all that must wait for the chunk before.

A chunk that starts from S offers r = rate (v - b k S), and ends with what is kept of S and Zᵀ r, see `delta_solving`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import added, place, product


@triton.jit
def write_kernel(
    keys: tl.tensor_descriptor,  # [batch × time, heads × KEY]
    values: tl.tensor_descriptor,  # [batch × time, heads × VALUE]
    left: tl.tensor_descriptor,  # Zᵀ [batch × heads × chunks × KEY, CHUNK]
    rate: tl.tensor,  # [batch, heads, time]
    since: tl.tensor,
    held: tl.tensor,  # [batch, heads, KEY, VALUE] in 32 bits; replaced by the last one
    starts: tl.tensor_descriptor,  # [batch × heads × chunks × KEY, VALUE]; out
    offers: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; out
    heads: int,
    chunks: int,
    CHUNK: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A program has one row, and a block of its values: no column of a memory meets another."""
    BLOCKS: tl.constexpr = VALUE // VALUE_BLOCK
    row, across = tl.program_id(0) // BLOCKS, (tl.program_id(0) % BLOCKS) * VALUE_BLOCK
    batch, head = row // heads, row % heads
    held += row.to(tl.int64) * KEY * VALUE + across + place(VALUE, KEY, VALUE_BLOCK)
    state = tl.load(held)
    for step in range(chunks):
        chunk, first = row * chunks + step, (batch * chunks + step) * CHUNK
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        key = keys.load([first, head * KEY])
        value = values.load([first, head * VALUE + across])
        leaving = left.load([chunk * KEY, 0])
        start = state.to(key.dtype)
        starts.store([chunk * KEY, across], start)
        known = product(key, start, PRECISION) * tl.exp2(tl.load(since + token))[:, None]
        offer = ((value.to(tl.float32) - known) * tl.load(rate + token)[:, None]).to(key.dtype)
        offers.store([first, head * VALUE + across], offer)
        state *= tl.exp2(tl.load(since + chunk * CHUNK + CHUNK - 1))
        state = added(state, leaving, offer, PRECISION)
    tl.store(held, state)


@triton.jit
def unwrite_kernel(
    queries: tl.tensor_descriptor,  # [batch × time, heads × KEY]
    keys: tl.tensor_descriptor,
    reads_bar: tl.tensor_descriptor,  # [batch × time, heads × VALUE]
    read: tl.tensor_descriptor,  # P [batch × heads × time, CHUNK]
    left: tl.tensor_descriptor,  # Zᵀ [batch × heads × chunks × KEY, CHUNK]
    rate: tl.tensor,  # [batch, heads, time]
    since: tl.tensor,
    held: tl.tensor,  # [batch, heads, KEY, VALUE] in 32 bits: the last state's adjoint; replaced by the first one's
    ends_bar: tl.tensor_descriptor,  # [batch × heads × chunks × KEY, VALUE]; out
    values_bar: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; out
    heads: int,
    chunks: int,
    CHUNK: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """The same way back. A value's adjoint is also, but for its sign, that of what the memory said to its key."""
    BLOCKS: tl.constexpr = VALUE // VALUE_BLOCK
    row, across = tl.program_id(0) // BLOCKS, (tl.program_id(0) % BLOCKS) * VALUE_BLOCK
    batch, head = row // heads, row % heads
    held += row.to(tl.int64) * KEY * VALUE + across + place(VALUE, KEY, VALUE_BLOCK)
    state_bar = tl.load(held)
    for i in range(chunks):
        step = chunks - 1 - i
        chunk, first = row * chunks + step, (batch * chunks + step) * CHUNK
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        query = queries.load([first, head * KEY])
        key = keys.load([first, head * KEY])
        read_bar = reads_bar.load([first, head * VALUE + across])
        seen = read.load([chunk * CHUNK, 0])
        leaving = left.load([chunk * KEY, 0])
        arriving = tl.exp2(tl.load(since + token))[:, None]
        end_bar = state_bar.to(key.dtype)
        ends_bar.store([chunk * KEY, across], end_bar)
        offer_bar = product(tl.trans(seen), read_bar, PRECISION)
        offer_bar = added(offer_bar, tl.trans(leaving), end_bar, PRECISION)
        value_bar = offer_bar * tl.load(rate + token)[:, None]
        values_bar.store([first, head * VALUE + across], value_bar.to(key.dtype))
        state_bar *= tl.exp2(tl.load(since + chunk * CHUNK + CHUNK - 1))
        asked_bar = (read_bar.to(tl.float32) * arriving).to(key.dtype)
        state_bar = added(state_bar, tl.trans(query), asked_bar, PRECISION)
        known_bar = (-value_bar * arriving).to(key.dtype)
        state_bar = added(state_bar, tl.trans(key), known_bar, PRECISION)
    tl.store(held, state_bar)
