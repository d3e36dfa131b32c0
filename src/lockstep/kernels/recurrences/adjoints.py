"""Adjoints of queries and what they say of the gates, all chunks side by side; those of keys with time turned round."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import added, place, product
from lockstep.kernels.recurrences.reads import kept_within


@triton.jit
def adjoint_kernel(
    queries: tl.tensor_descriptor,  # [batch × time, groups × KEY]; backwards, the keys
    keys: tl.tensor_descriptor,  # [batch × time, groups × KEY]; backwards, the queries
    reads_bar: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; backwards, the values
    values: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; backwards, the reads' adjoints
    since: tl.tensor,  # [batch, heads, time]
    shares: tl.tensor,  # [batch, heads, time]: since the chunk's start; backwards, until its end
    copies: tl.tensor_descriptor,  # [batch × heads × chunks × KEY, VALUE]: at the start; backwards, adjoints at the end
    starts: tl.tensor,  # the same, at the start in any case
    queries_bar: tl.tensor_descriptor,  # [batch × time, heads / span × KEY]; backwards, the keys' adjoints
    near: tl.tensor,  # [KEY / KEY_BLOCK, batch, heads, time], as `decays.Shares`
    far: tl.tensor,
    crossing: tl.tensor,  # [KEY / KEY_BLOCK, batch, heads, chunks]; filled on the way back alone
    rows: int,
    heads: int,
    groups: int,
    chunks: int,
    span: int,
    CHUNK: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    BACKWARDS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A program has one chunk, a block of its keys, and `span` heads that share them.

    What gates are told of a token is its query times what this head adds to the query's adjoint, apart for other
    tokens of the chunk and for the state.
    """
    BLOCKS: tl.constexpr = KEY // KEY_BLOCK
    part, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    parts = heads // span
    tile, first, down = part // parts, (part % parts) * span, block * KEY_BLOCK
    group, token = first // (heads // groups), tile * CHUNK
    key = keys.load([token, group * KEY + down])
    query = queries.load([token, group * KEY + down])
    itself = tl.arange(0, CHUNK)[:, None] == tl.arange(0, CHUNK)[None, :]
    own = tl.zeros([CHUNK], tl.float32)
    query_bar = tl.zeros([CHUNK, KEY_BLOCK], tl.float32)
    for head in range(first, first + span):
        chunk = ((tile // chunks) * heads + head) * chunks + tile % chunks
        # First of all, because nothing brings these numbers ahead of their round.
        share = tl.load(shares + chunk * CHUNK + tl.arange(0, CHUNK))
        corner = starts + (chunk.to(tl.int64) * KEY + down) * VALUE
        outer = tl.zeros([CHUNK, KEY_BLOCK], tl.float32)
        through = 0.0
        for i in range(VALUE // VALUE_BLOCK):
            if BACKWARDS:
                start = tl.load(corner + i * VALUE_BLOCK + place(VALUE, KEY_BLOCK, VALUE_BLOCK))
            bar = reads_bar.load([token, head * VALUE + i * VALUE_BLOCK])
            copy = copies.load([chunk * KEY + down, i * VALUE_BLOCK])
            outer = added(outer, bar, tl.trans(copy), PRECISION)
            if BACKWARDS:
                through += tl.sum(copy.to(tl.float32) * start.to(tl.float32))
        outer *= tl.exp2(share)[:, None]
        by_state = tl.sum(outer * query.to(tl.float32), axis=1)
        query_bar += outer
        # In a loop of its own: registers do not hold both sums.
        weights = tl.zeros([CHUNK, CHUNK], tl.float32)
        for i in range(VALUE // VALUE_BLOCK):
            bar = reads_bar.load([token, head * VALUE + i * VALUE_BLOCK])
            value = values.load([token, head * VALUE + i * VALUE_BLOCK])
            weights = added(weights, bar, tl.trans(value), PRECISION)
        weights *= kept_within(since + chunk * CHUNK, CHUNK, BACKWARDS)
        # What a token reads of its own write goes through no gate.
        own += tl.sum(tl.where(itself, weights, 0.0), axis=1)
        within = product(tl.where(itself, 0.0, weights).to(key.dtype), key, PRECISION)
        query_bar += within
        told = (block * rows * chunks + chunk) * CHUNK + tl.arange(0, CHUNK)
        tl.store(near + told, tl.sum(within * query.to(tl.float32), axis=1))
        tl.store(far + told, by_state)
        if BACKWARDS:
            tl.store(crossing + block * rows * chunks + chunk, through)
    query_bar += own[:, None] * key.to(tl.float32)
    queries_bar.store([token, (part % parts) * KEY + down], query_bar.to(queries_bar.dtype))
