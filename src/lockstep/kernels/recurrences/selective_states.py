"""What the tokens of a segment do to a state, all segments side by side, and the states between segments.

With time turned round the same kernels give the adjoints of those states: queries write what is asked of the reads.

A program is a warp, so that nobody waits for another, with a block of channels. Its states are tiles
[STATES / EACH, EACH, BLOCK], of which the middle is one thread's own, and what belongs to the channels of a token is
[STATES / EACH, BLOCK] with all rows alike, so that each thread loads what it needs and nothing is passed around.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

LOG2_E = tl.constexpr(math.log2(math.e))
EACH = tl.constexpr(4)
"""States of a channel, and channels, that a thread has."""
AHEAD = tl.constexpr(4)
"""Tokens that are asked for before the first of them is used."""


@triton.jit
def own_part(segments: int, STATES: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """A program's sample and segment, its places in a token [STATES / EACH, BLOCK], and those in a state.

    Blocks come first, because all of a token read its keys.
    """
    BLOCKS: tl.constexpr = CHANNELS // BLOCK
    segment, across = tl.program_id(0) // BLOCKS, (tl.program_id(0) % BLOCKS) * BLOCK
    columns = across + tl.arange(0, BLOCK)[None, :] + tl.zeros([STATES // EACH, 1], tl.int32)
    places = state_places(STATES)[:, :, None] * CHANNELS + columns[:, None, :]
    # Else 16-bit numbers would be laid out by eights, and what is computed would follow them.
    places = tl.max_contiguous(places, [1, 1, EACH])
    return (segment // segments).to(tl.int64), segment % segments, columns, places


@triton.jit
def state_places(STATES: tl.constexpr) -> tl.tensor:
    """Of a channel's states, [STATES / EACH, EACH]."""
    return tl.arange(0, STATES // EACH)[:, None] * EACH + tl.arange(0, EACH)[None, :]


@triton.jit
def once(STATES: tl.constexpr) -> tl.tensor:
    """Which of the rows that are alike is written, [STATES / EACH, 1]."""
    return tl.arange(0, STATES // EACH)[:, None] == 0


@triton.jit
def exponents_of(decay: tl.tensor, places: tl.tensor) -> tl.tensor:
    """What a rate is multiplied by to give the binary logarithm of what is kept."""
    return tl.load(decay + places) * -LOG2_E


@triton.jit
def is_there(token: tl.tensor, time: tl.tensor) -> tl.tensor:
    """Whether a token comes before the end, [1, 1]."""
    return token + tl.zeros([1, 1], tl.int32) < time


@triton.jit
def of_states(tokens: tl.tensor, row: tl.tensor, there: tl.tensor, STATES: tl.constexpr) -> tl.tensor:
    """A token's key or query, [STATES / EACH, EACH, 1]; zeros for one that is not there."""
    numbers = tl.load(tokens + row * STATES + state_places(STATES), mask=there, other=0.0)
    return numbers.to(tl.float32)[:, :, None]


@triton.jit
def of_channels(
    tokens: tl.tensor, row: tl.tensor, there: tl.tensor, columns: tl.tensor, CHANNELS: tl.constexpr
) -> tl.tensor:
    """A token's rate, value or the like, [STATES / EACH, BLOCK]; a rate of zero changes nothing."""
    return tl.load(tokens + row * CHANNELS + columns, mask=there, other=0.0).to(tl.float32)


@triton.jit
def kept(share: tl.tensor, exponents: tl.tensor) -> tl.tensor:
    """What is left of each state after a rate, or a sum of rates."""
    return tl.exp2(share[:, None, :] * exponents)


@triton.jit
def after(
    state: tl.tensor,
    exponents: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    rate: tl.tensor,
    row: tl.tensor,
    there: tl.tensor,
    columns: tl.tensor,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> tl.tensor:
    """The state after a token."""
    share = of_channels(rate, row, there, columns, CHANNELS)
    written = share * of_channels(values, row, there, columns, CHANNELS)
    return kept(share, exponents) * state + of_states(keys, row, there, STATES) * written[:, None, :]


@triton.jit
def segment_kernel(
    keys: tl.tensor,  # [batch, time, STATES]; backwards, the queries
    values: tl.tensor,  # [batch, time, CHANNELS]; backwards, the reads' adjoints
    rate: tl.tensor,  # [batch, time, CHANNELS]
    decay: tl.tensor,  # [STATES, CHANNELS]
    written: tl.tensor,  # [batch, segments, STATES, CHANNELS]; out: what a segment leaves in a state of zeros
    passed: tl.tensor,  # [batch, segments, CHANNELS]; out: the sum of its rates
    time: int,
    segments: int,
    tokens: int,  # of a segment, in whole rounds
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    BACKWARDS: tl.constexpr,
) -> None:
    """A program has one segment, and a block of its channels. What the last one leaves no other meets."""
    sample, step, columns, places = own_part(segments - 1, STATES, CHANNELS, BLOCK)
    segment = step + 1 if BACKWARDS else step
    exponents = exponents_of(decay, places)
    state = tl.zeros([STATES // EACH, EACH, BLOCK], tl.float32)
    total = tl.zeros([STATES // EACH, BLOCK], tl.float32)
    for i in range(tokens // AHEAD):
        for j in tl.static_range(AHEAD):
            step = i * AHEAD + j
            token = segment * tokens + (tokens - 1 - step if BACKWARDS else step)
            row, there = sample * time + token, is_there(token, time)
            share = of_channels(rate, row, there, columns, CHANNELS)
            if BACKWARDS:
                read_bar = of_channels(values, row, there, columns, CHANNELS)
                asked = of_states(keys, row, there, STATES) * read_bar[:, None, :]
                state = kept(share, exponents) * (state + asked)
            else:
                state = after(state, exponents, keys, values, rate, row, there, columns, STATES, CHANNELS)
            total += share
    whole = sample * segments + segment
    tl.store(written + whole * STATES * CHANNELS + places, state)
    tl.store(passed + whole * CHANNELS + columns, total, mask=once(STATES))


@triton.jit
def join_kernel(
    first: tl.tensor,  # [batch, STATES, CHANNELS]: at the start; backwards, the adjoint at the end
    decay: tl.tensor,  # [STATES, CHANNELS]
    written: tl.tensor,  # [batch, segments, STATES, CHANNELS]
    passed: tl.tensor,  # [batch, segments, CHANNELS]
    met: tl.tensor,  # [batch, segments, STATES, CHANNELS]; out: what each segment meets
    segments: int,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    BACKWARDS: tl.constexpr,
) -> None:
    """A program has a block of a sample's channels, and goes from segment to segment."""
    sample, _, columns, places = own_part(1, STATES, CHANNELS, BLOCK)
    exponents = exponents_of(decay, places)
    state = tl.load(first + sample * STATES * CHANNELS + places)
    for i in range(segments - 1):
        whole = sample * segments + (segments - 1 - i if BACKWARDS else i)
        tl.store(met + whole * STATES * CHANNELS + places, state)
        share = kept(tl.load(passed + whole * CHANNELS + columns), exponents)
        state = share * state + tl.load(written + whole * STATES * CHANNELS + places)
    whole = sample * segments + (0 if BACKWARDS else segments - 1)
    tl.store(met + whole * STATES * CHANNELS + places, state)
