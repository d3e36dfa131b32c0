"""Adjoints of queries and what they say of the gates, all chunks side by side; those of keys with time turned round."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import added, product
from lockstep.kernels.recurrences.channel_decays import (
    are_apart,
    is_later,
    may_read,
    of_rows,
    to_the_edge,
    to_the_middle,
)


@triton.jit
def channel_adjoint_kernel(
    queries: tl.tensor_descriptor,  # [batch, heads, time, KEY]; backwards, the keys
    keys: tl.tensor_descriptor,  # [batch, heads, time, KEY]; backwards, the queries
    reads_bar: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; backwards, the values
    values: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; backwards, the reads' adjoints
    since: tl.tensor,  # [batch, time, heads, KEY]
    copies: tl.tensor_descriptor,  # [batch × heads × chunks, KEY, VALUE]: at the start; backwards, adjoints at the end
    starts: tl.tensor_descriptor,  # the same, at the start in any case
    queries_bar: tl.tensor_descriptor,  # [batch, heads, time, KEY]; out; backwards, the keys' adjoints
    log_keep_bar: tl.tensor,  # [batch, time, heads, KEY]; out: by way of queries; backwards, that of keys is added
    heads: int,
    chunks: int,
    CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,  # a chunk is 2 ** LEVELS
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    BACKWARDS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A program has one chunk of one head, and a block of its keys.

    A gate counts for all that goes through it. What a token reads of the chunk's start goes through the gates up to its
    own, what it reads across a middle through those from there on; so of what is read across the longer spans, all that
    later halves read goes through every gate of the earlier half beside them, and through some of their own, which
    shorter spans tell. Backwards it is the earlier halves, and gates of the later. No sum is of large numbers that
    cancel.
    """
    BLOCKS: tl.constexpr = (KEY + KEY_BLOCK - 1) // KEY_BLOCK
    chunk, down = tl.program_id(0) // BLOCKS, (tl.program_id(0) % BLOCKS) * KEY_BLOCK
    row, step = chunk // chunks, chunk % chunks
    sample, head = row // heads, row % heads
    first, stride = (sample * chunks + step) * CHUNK, heads * KEY
    weights = tl.zeros([CHUNK, CHUNK], tl.float32)
    outer = tl.zeros([CHUNK, KEY_BLOCK], tl.float32)
    through = tl.zeros([KEY_BLOCK], tl.float32)
    for across in range(0, VALUE, VALUE_BLOCK):
        bar = reads_bar.load([first, head * VALUE + across])
        value = values.load([first, head * VALUE + across])
        copy = copies.load([chunk, down, across]).reshape(KEY_BLOCK, VALUE_BLOCK)
        weights = added(weights, bar, tl.trans(value), PRECISION)
        outer = added(outer, bar, tl.trans(copy), PRECISION)
        if BACKWARDS:
            start = starts.load([chunk, down, across]).reshape(KEY_BLOCK, VALUE_BLOCK)
            through += tl.sum(copy.to(tl.float32) * start.to(tl.float32), axis=1)

    place = (first.to(tl.int64) * heads + head) * KEY + down
    since += place
    total = of_rows(since, tl.arange(0, CHUNK), stride, KEY - down, KEY_BLOCK)
    query = queries.load([sample, head, step * CHUNK, down]).reshape(CHUNK, KEY_BLOCK)
    key = keys.load([sample, head, step * CHUNK, down]).reshape(CHUNK, KEY_BLOCK)
    weights = tl.where(may_read(CHUNK, BACKWARDS), weights, 0.0).to(key.dtype)
    query_bar = outer * to_the_edge(since, total, stride, KEY - down, CHUNK, BACKWARDS)
    gates = tl.zeros([CHUNK, KEY_BLOCK], tl.float32)
    for i in tl.range(LEVELS, num_stages=1):
        level = LEVELS - 1 - i
        apart = are_apart(CHUNK, level)
        passing = tl.where(is_later(CHUNK, level)[:, None] != BACKWARDS, query_bar * query, 0.0)
        # Weights are asked so that ones and zeros are made in their layout, which is that of a first operand.
        beside = tl.where(apart & (weights == weights), 1.0, 0.0).to(key.dtype)
        gates = added(gates, beside, passing.to(key.dtype), PRECISION)
        kept = to_the_middle(since, total, stride, KEY - down, level)
        near = tl.where(apart, weights, 0.0).to(key.dtype)
        query_bar += product(near, (key * kept).to(key.dtype), PRECISION) * kept
    if not BACKWARDS:
        # What a token reads goes through its own gate, what it writes does not.
        gates += query_bar * query
    # What it reads of its own write goes through none.
    itself = tl.arange(0, CHUNK)[:, None] == tl.arange(0, CHUNK)[None, :]
    query_bar = added(query_bar, tl.where(itself, weights, 0.0).to(key.dtype), key, PRECISION)
    queries_bar.store(
        [sample, head, step * CHUNK, down], query_bar.to(queries_bar.dtype).reshape(1, 1, CHUNK, KEY_BLOCK)
    )
    column = tl.arange(0, KEY_BLOCK)[None, :]
    log_keep_bar += place + tl.arange(0, CHUNK)[:, None] * stride + column
    if BACKWARDS:
        whole = of_rows(since, tl.arange(0, 1) + CHUNK - 1, stride, KEY - down, KEY_BLOCK)
        gates += through[None, :] * tl.exp2(whole) + tl.load(log_keep_bar, mask=column < KEY - down, other=0.0)
    tl.store(log_keep_bar, gates, mask=column < KEY - down)
