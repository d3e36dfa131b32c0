"""Adjoints of queries, keys and rates, and what they say of the gates, all chunks side by side.

Keys are asked as queries are, each before its own write: the adjoint of what was said to them is a value's, negative.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import added, product
from lockstep.kernels.recurrences.delta_solving import in_parts
from lockstep.kernels.recurrences.reads import kept_within


@triton.jit
def delta_adjoint_kernel(
    queries: tl.tensor_descriptor,  # [batch × time, heads × KEY]
    keys: tl.tensor_descriptor,
    reads_bar: tl.tensor_descriptor,  # [batch × time, heads × VALUE]
    values_bar: tl.tensor_descriptor,
    writes: tl.tensor_descriptor,
    rate: tl.tensor,  # [batch, heads, time]
    since: tl.tensor,
    until: tl.tensor,
    starts: tl.tensor_descriptor,  # [batch × heads × chunks × KEY, VALUE]
    ends_bar: tl.tensor_descriptor,
    queries_bar: tl.tensor_descriptor,  # [batch × time, heads × KEY]; out, as all that follow
    keys_bar: tl.tensor_descriptor,
    rate_bar: tl.tensor,  # [batch, heads, time]
    near_queries: tl.tensor,  # [KEY / KEY_BLOCK, batch, heads, time], as `decays.Shares`; keys that are asked are among
    far_queries: tl.tensor,
    near_keys: tl.tensor,
    far_keys: tl.tensor,
    crossing: tl.tensor,  # [KEY / KEY_BLOCK, batch, heads, chunks]
    rows: int,
    heads: int,
    chunks: int,
    CHUNK: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A program has one chunk of one head, and a block of its keys.

    Products of tokens with tokens have rows for those that read. What keys are told by those that read them is summed
    up as columns, because a transpose of what a product gave is no first operand.
    """
    BLOCKS: tl.constexpr = KEY // KEY_BLOCK
    chunk, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    row, step = chunk // chunks, chunk % chunks
    head, first = row % heads, ((row // heads) * chunks + step) * CHUNK
    down = block * KEY_BLOCK
    read_bar = tl.zeros([CHUNK, CHUNK], tl.float32)
    said_bar = tl.zeros([CHUNK, CHUNK], tl.float32)
    query_bar = tl.zeros([CHUNK, KEY_BLOCK], tl.float32)
    asked_bar = tl.zeros([CHUNK, KEY_BLOCK], tl.float32)
    columns_bar = tl.zeros([KEY_BLOCK, CHUNK], tl.float32)
    through = 0.0
    for i in range(VALUE // VALUE_BLOCK):
        across = i * VALUE_BLOCK
        bar = reads_bar.load([first, head * VALUE + across])
        value_bar = values_bar.load([first, head * VALUE + across])
        wrote = tl.trans(writes.load([first, head * VALUE + across]))
        start = starts.load([chunk * KEY + down, across])
        end_bar = ends_bar.load([chunk * KEY + down, across])
        read_bar = added(read_bar, bar, wrote, PRECISION)
        said_bar = added(said_bar, value_bar, wrote, PRECISION)
        query_bar = added(query_bar, bar, tl.trans(start), PRECISION)
        asked_bar = added(asked_bar, value_bar, tl.trans(start), PRECISION)
        columns_bar = added(columns_bar, end_bar, wrote, PRECISION)
        through += tl.sum(start.to(tl.float32) * end_bar.to(tl.float32))
    tl.store(crossing + block * rows * chunks + chunk, through)

    token = tl.arange(0, CHUNK)
    itself = token[:, None] == token[None, :]
    own, told = chunk * CHUNK + token, (block * rows * chunks + chunk) * CHUNK + token
    query, key = queries.load([first, head * KEY + down]), keys.load([first, head * KEY + down])
    arriving = tl.exp2(tl.load(since + own))[:, None]
    read_bar *= kept_within(since + chunk * CHUNK, CHUNK, False)
    # What a token reads of its own write goes through no gate.
    near = tl.where(itself, 0.0, read_bar * product(query, tl.trans(key), PRECISION))
    by_rows, by_columns = tl.sum(near, axis=1), tl.sum(near, axis=0)
    query_bar *= arriving
    far = tl.sum(query_bar * query.to(tl.float32), axis=1)
    # Where keys are alike their sum is small beside its parts.
    read_low, read_rest = in_parts(read_bar, keys.dtype)
    query_bar = added(query_bar, read_rest, key, PRECISION)
    query_bar = added(query_bar, read_low, key, PRECISION)
    queries_bar.store([first, head * KEY + down], query_bar.to(key.dtype))

    if block == 0:
        # A value's adjoint and what is written in its place hold the rate once each.
        share = tl.load(rate + own)
        tl.store(rate_bar + own, tl.sum(tl.where(itself, said_bar, 0.0), axis=1) / share / share)
    said_bar = tl.where(itself, 0.0, -said_bar * kept_within(since + chunk * CHUNK, CHUNK, False))
    near = said_bar * product(key, tl.trans(key), PRECISION)
    tl.store(near_queries + told, by_rows + tl.sum(near, axis=1))
    tl.store(near_keys + told, by_columns + tl.sum(near, axis=0))
    asked_bar *= -arriving
    tl.store(far_queries + told, far + tl.sum(asked_bar * key.to(tl.float32), axis=1))
    said_low = said_bar.to(key.dtype)
    asked_bar = added(asked_bar, said_low, key, PRECISION)

    columns_bar *= tl.exp2(tl.load(until + own))[None, :]
    tl.store(far_keys + told, tl.sum(columns_bar * tl.trans(key).to(tl.float32), axis=0))
    columns_bar = added(columns_bar, tl.trans(query), read_low, PRECISION)
    columns_bar = added(columns_bar, tl.trans(key), said_low, PRECISION)
    keys_bar.store([first, head * KEY + down], (asked_bar + tl.trans(columns_bar)).to(key.dtype))
