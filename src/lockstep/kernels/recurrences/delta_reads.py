"""What is read of a chunk's start and of its offers, and what the chunk writes, all chunks side by side."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import added, product


@triton.jit
def delta_read_kernel(
    queries: tl.tensor_descriptor,  # [batch × time, heads × KEY]
    offers: tl.tensor_descriptor,  # [batch × time, heads × VALUE]
    written: tl.tensor_descriptor,  # X [batch × heads × time, CHUNK]
    read: tl.tensor_descriptor,  # P, likewise
    since: tl.tensor,  # [batch, heads, time]
    starts: tl.tensor_descriptor,  # [batch × heads × chunks × KEY, VALUE]
    reads: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; out
    writes: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; out
    heads: int,
    chunks: int,
    CHUNK: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A program has one chunk of one head, and a block of its values."""
    BLOCKS: tl.constexpr = VALUE // VALUE_BLOCK
    chunk, across = tl.program_id(0) // BLOCKS, (tl.program_id(0) % BLOCKS) * VALUE_BLOCK
    row, step = chunk // chunks, chunk % chunks
    head, first = row % heads, ((row // heads) * chunks + step) * CHUNK
    offer = offers.load([first, head * VALUE + across])
    wrote = product(written.load([chunk * CHUNK, 0]), offer, PRECISION)
    writes.store([first, head * VALUE + across], wrote.to(offer.dtype))
    found = product(queries.load([first, head * KEY]), starts.load([chunk * KEY, across]), PRECISION)
    found *= tl.exp2(tl.load(since + chunk * CHUNK + tl.arange(0, CHUNK)))[:, None]
    found = added(found, read.load([chunk * CHUNK, 0]), offer, PRECISION)
    reads.store([first, head * VALUE + across], found)
