"""What is read of a chunk's start and of its own writes, all chunks side by side.

The adjoints of values are the same with time turned round: keys read what queries wrote of the reads' adjoints, and
of the adjoint of the state at the chunk's end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import added, product


@triton.jit
def kept_within(since: tl.tensor, CHUNK: tl.constexpr, BACKWARDS: tl.constexpr) -> tl.tensor:
    """What is kept between two tokens, [CHUNK, CHUNK]: of each column's, seen from each row; of what comes after, 0.

    Backwards it is the transpose, to the last bit: what gates are told of both cancels.
    """
    token = tl.arange(0, CHUNK)
    rows, columns = tl.load(since + token)[:, None], tl.load(since + token)[None, :]
    if BACKWARDS:
        between = tl.where(token[:, None] <= token[None, :], columns - rows, float("-inf"))
    else:
        between = tl.where(token[:, None] >= token[None, :], rows - columns, float("-inf"))
    return tl.exp2(between)


@triton.jit
def read_kernel(
    queries: tl.tensor_descriptor,  # [batch × time, groups × KEY]; backwards, the keys
    keys: tl.tensor_descriptor,  # [batch × time, groups × KEY]; backwards, the queries
    values: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; backwards, the reads' adjoints
    since: tl.tensor,  # [batch, heads, time]
    shares: tl.tensor,  # [batch, heads, time]: since the chunk's start; backwards, until its end
    copies: tl.tensor_descriptor,  # [batch × heads × chunks × KEY, VALUE]: at the start; backwards, adjoints at the end
    reads: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; backwards, the values' adjoints
    heads: int,
    groups: int,
    chunks: int,
    span: int,
    CHUNK: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    BACKWARDS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A program has one chunk, a block of its values, and `span` heads that share their keys."""
    BLOCKS: tl.constexpr = VALUE // VALUE_BLOCK
    part, across = tl.program_id(0) // BLOCKS, (tl.program_id(0) % BLOCKS) * VALUE_BLOCK
    tile, first = part // (heads // span), (part % (heads // span)) * span
    group, token = first // (heads // groups), tile * CHUNK
    query = queries.load([token, group * KEY])
    scores = product(query, tl.trans(keys.load([token, group * KEY])), PRECISION)
    for head in range(first, first + span):
        chunk = ((tile // chunks) * heads + head) * chunks + tile % chunks
        # First of all, because nothing brings these numbers ahead of their round.
        share = tl.load(shares + chunk * CHUNK + tl.arange(0, CHUNK))
        found = product(query, copies.load([chunk * KEY, across]), PRECISION)
        found *= tl.exp2(share)[:, None]
        weights = (scores * kept_within(since + chunk * CHUNK, CHUNK, BACKWARDS)).to(query.dtype)
        found = added(found, weights, values.load([token, head * VALUE + across]), PRECISION)
        reads.store([token, head * VALUE + across], found.to(reads.dtype))
