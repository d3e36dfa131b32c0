"""What is read of a chunk's start and of its own writes, all chunks side by side.

The adjoints of values are the same with time turned round: keys read what queries wrote of the reads' adjoints, and
of the adjoint of the state at the chunk's end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import added, product
from lockstep.kernels.recurrences.channel_decays import are_apart, may_read, of_rows, to_the_edge, to_the_middle


@triton.jit
def channel_read_kernel(
    queries: tl.tensor_descriptor,  # [batch, heads, time, KEY]; backwards, the keys
    keys: tl.tensor_descriptor,  # [batch, heads, time, KEY]; backwards, the queries
    values: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; backwards, the reads' adjoints
    since: tl.tensor,  # [batch, time, heads, KEY]
    copies: tl.tensor_descriptor,  # [batch × heads × chunks, KEY, VALUE]: at the start; backwards, adjoints at the end
    reads: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; backwards, the values' adjoints
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
    """A program has one chunk of one head, and a block of its values."""
    BLOCKS: tl.constexpr = VALUE // VALUE_BLOCK
    chunk, across = tl.program_id(0) // BLOCKS, (tl.program_id(0) % BLOCKS) * VALUE_BLOCK
    row, step = chunk // chunks, chunk % chunks
    sample, head = row // heads, row % heads
    first, stride = (sample * chunks + step) * CHUNK, heads * KEY
    since += (first.to(tl.int64) * heads + head) * KEY
    token = tl.arange(0, CHUNK)
    itself = token[:, None] == token[None, :]
    scores = tl.zeros([CHUNK, CHUNK], tl.float32)
    found = tl.zeros([CHUNK, VALUE_BLOCK], tl.float32)
    for down in range(0, KEY, KEY_BLOCK):
        query = queries.load([sample, head, step * CHUNK, down]).reshape(CHUNK, KEY_BLOCK)
        key = keys.load([sample, head, step * CHUNK, down]).reshape(CHUNK, KEY_BLOCK)
        copy = copies.load([chunk, down, across]).reshape(KEY_BLOCK, VALUE_BLOCK)
        total = of_rows(since + down, token, stride, KEY - down, KEY_BLOCK)
        share = to_the_edge(since + down, total, stride, KEY - down, CHUNK, BACKWARDS)
        found = added(found, (query * share).to(query.dtype), copy, PRECISION)
        # What a token reads of its own write goes through no gate.
        scores += tl.where(itself, product(query, tl.trans(key), PRECISION), 0.0)
        for level in tl.range(LEVELS, num_stages=1):
            kept = to_the_middle(since + down, total, stride, KEY - down, level)
            shares = product((query * kept).to(query.dtype), tl.trans((key * kept).to(key.dtype)), PRECISION)
            scores += tl.where(are_apart(CHUNK, level), shares, 0.0)
    scores = tl.where(may_read(CHUNK, BACKWARDS), scores, 0.0)
    value = values.load([first, head * VALUE + across])
    found = added(found, scores.to(value.dtype), value, PRECISION)
    reads.store([first, head * VALUE + across], found.to(reads.dtype))
