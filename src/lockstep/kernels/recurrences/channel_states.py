"""The state's way from chunk to chunk, and its adjoint's way back: all that must wait for the chunk before."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import added, place, turned


@triton.jit
def channel_chain_kernel(
    keys: tl.tensor_descriptor,  # [batch, heads, time, KEY]; backwards, the queries
    values: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; backwards, the reads' adjoints
    since: tl.tensor,  # [batch, time, heads, KEY]
    held: tl.tensor,  # [batch, heads, KEY, VALUE] in 32 bits; replaced by the last one
    copies: tl.tensor_descriptor,  # [batch × heads × chunks, KEY, VALUE]; out: what each chunk meets
    heads: int,
    chunks: int,
    CHUNK: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    BACKWARDS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """No number of a state meets another: a program has one row, and a block of its state.

    Each chunk keeps a share of each channel of the state it meets, and adds its own writes.
    """
    BLOCKS: tl.constexpr = VALUE // VALUE_BLOCK
    PROGRAMS: tl.constexpr = BLOCKS * ((KEY + KEY_BLOCK - 1) // KEY_BLOCK)
    row, block = tl.program_id(0) // PROGRAMS, tl.program_id(0) % PROGRAMS
    sample, head = row // heads, row % heads
    down, across = (block // BLOCKS) * KEY_BLOCK, (block % BLOCKS) * VALUE_BLOCK
    channel = tl.arange(0, KEY_BLOCK)
    there = (channel < KEY - down)[:, None]
    held += (row.to(tl.int64) * KEY + down) * VALUE + across + place(VALUE, KEY_BLOCK, VALUE_BLOCK)
    state = tl.load(held, mask=there, other=0.0)
    since += (sample.to(tl.int64) * chunks * CHUNK * heads + head) * KEY + down
    for i in range(chunks):
        step = chunks - 1 - i if BACKWARDS else i
        first = since + tl.cast(step, tl.int64) * CHUNK * heads * KEY
        key = tl.trans(keys.load([sample, head, step * CHUNK, down]).reshape(CHUNK, KEY_BLOCK))
        value = values.load([(sample * chunks + step) * CHUNK, head * VALUE + across])
        total = tl.load(first + turned(heads * KEY, CHUNK, KEY_BLOCK), mask=there, other=0.0)
        whole = tl.load(first + (CHUNK - 1) * heads * KEY + channel[:, None], mask=there, other=0.0)
        share = tl.exp2(total if BACKWARDS else whole - total)
        copies.store([row * chunks + step, down, across], state.to(key.dtype).reshape(1, KEY_BLOCK, VALUE_BLOCK))
        state *= tl.exp2(whole)
        state = added(state, (key.to(tl.float32) * share).to(key.dtype), value, PRECISION)
    tl.store(held, state, mask=there)
