"""The state's way from chunk to chunk, and its adjoint's way back: all that must wait for the chunk before."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import added, place


@triton.jit
def chain_kernel(
    keys: tl.tensor_descriptor,  # [batch × time, groups × KEY]; backwards, the queries
    values: tl.tensor_descriptor,  # [batch × time, heads × VALUE]; backwards, the reads' adjoints
    since: tl.tensor,  # [batch, heads, time]
    shares: tl.tensor,  # [batch, heads, time]: of what is written, until the chunk's end; backwards, since its start
    held: tl.tensor,  # [batch, heads, KEY, VALUE] in 32 bits; replaced by the last one
    copies: tl.tensor_descriptor,  # [batch × heads × chunks × KEY, VALUE]; out: what each chunk meets
    heads: int,
    groups: int,
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

    Each chunk keeps a share of the state it meets, and adds its own writes.
    """
    KEY_BLOCKS: tl.constexpr = KEY // KEY_BLOCK
    BLOCKS: tl.constexpr = KEY_BLOCKS * (VALUE // VALUE_BLOCK)
    row, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    batch, head = row // heads, row % heads
    group = head // (heads // groups)
    down, across = (block % KEY_BLOCKS) * KEY_BLOCK, (block // KEY_BLOCKS) * VALUE_BLOCK
    held += (row.to(tl.int64) * KEY + down) * VALUE + across + place(VALUE, KEY_BLOCK, VALUE_BLOCK)
    state = tl.load(held)
    for i in range(chunks):
        step = chunks - 1 - i if BACKWARDS else i
        chunk, token = row * chunks + step, (batch * chunks + step) * CHUNK
        # First of all, because nothing brings this number ahead of its round.
        whole = tl.load(since + chunk * CHUNK + CHUNK - 1)
        key = tl.trans(keys.load([token, group * KEY + down]))
        value = values.load([token, head * VALUE + across])
        share = tl.exp2(tl.load(shares + chunk * CHUNK + tl.arange(0, CHUNK)))[None, :]
        copies.store([chunk * KEY + down, across], state.to(key.dtype))
        state *= tl.exp2(whole)
        state = added(state, (key.to(tl.float32) * share).to(key.dtype), value, PRECISION)
    tl.store(held, state)
