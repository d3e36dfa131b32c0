"""Adjoints of the tokens and of the decay, all segments side by side.

States are made again from those that were kept, a few tokens at a time: as many as have their states in registers.
Where more lie between two that were kept, the later ones come first, and the way to them is gone again.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from lockstep.kernels.recurrences.selective_reads import over_states
from lockstep.kernels.recurrences.selective_states import (
    EACH,
    after,
    exponents_of,
    is_there,
    kept,
    of_channels,
    of_states,
    once,
    own_part,
    state_places,
)

LN_2 = tl.constexpr(math.log(2))


@triton.jit
def adjoint_kernel(
    queries: tl.tensor,  # [batch, time, STATES]
    keys: tl.tensor,
    values: tl.tensor,  # [batch, time, CHANNELS]
    rate: tl.tensor,
    decay: tl.tensor,  # [STATES, CHANNELS]
    starts: tl.tensor,  # [batch, spans, STATES, CHANNELS]
    reads_bar: tl.tensor,  # [batch, time, CHANNELS]
    met: tl.tensor,  # [batch, segments, STATES, CHANNELS]: the adjoint of the state after a segment
    queries_bar: tl.tensor,  # [CHANNELS / BLOCK, batch, time, STATES]; out: what each block has to say of them
    keys_bar: tl.tensor,
    values_bar: tl.tensor,  # [batch, time, CHANNELS]; out
    rate_bar: tl.tensor,
    decay_bar: tl.tensor,  # [batch, segments, STATES, CHANNELS]; out
    first_bar: tl.tensor,  # [batch, STATES, CHANNELS]; out
    samples: int,
    time: int,
    segments: int,
    tokens: int,  # of a segment, in whole spans
    spans: int,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    HELD: tl.constexpr,  # tokens whose states are held at once; they divide a span
) -> None:
    """A program has one segment, and a block of its channels."""
    sample, segment, columns, places = own_part(segments, STATES, CHANNELS, BLOCK)
    exponents = exponents_of(decay, places)
    whole = (sample * segments + segment) * STATES * CHANNELS + places
    later_bar = tl.load(met + whole)
    shares_bar = tl.zeros([STATES // EACH, EACH, BLOCK], tl.float32)
    begin = segment * tokens
    end = tl.minimum(begin + tokens, spans * SPAN)
    told = (tl.program_id(0) % (CHANNELS // BLOCK)).to(tl.int64) * samples * time
    for i in range((end - begin) // HELD):
        token = end - (i + 1) * HELD
        span = token // SPAN
        state = tl.load(starts + (sample * spans + span) * STATES * CHANNELS + places).to(tl.float32)
        for j in range((token - span * SPAN) // HELD):
            for k in tl.static_range(HELD):
                earlier = span * SPAN + j * HELD + k
                row, there = sample * time + earlier, is_there(earlier, time)
                state = after(state, exponents, keys, values, rate, row, there, columns, STATES, CHANNELS)
        before, query_bars, key_bars = tl.tuple(()), tl.tuple(()), tl.tuple(())
        for k in tl.static_range(HELD):
            row, there = sample * time + token + k, is_there(token + k, time)
            before += (state,)
            state = after(state, exponents, keys, values, rate, row, there, columns, STATES, CHANNELS)
            read_bar = of_channels(reads_bar, row, there, columns, CHANNELS)
            query_bars += (tl.sum(state * read_bar[:, None, :], axis=2),)
        for k in tl.static_range(HELD - 1, -1, -1):
            row, there = sample * time + token + k, is_there(token + k, time)
            share = of_channels(rate, row, there, columns, CHANNELS)
            value = of_channels(values, row, there, columns, CHANNELS)
            read_bar = of_channels(reads_bar, row, there, columns, CHANNELS)
            state_bar = later_bar + of_states(queries, row, there, STATES) * read_bar[:, None, :]
            key_bars += (tl.sum(state_bar * (share * value)[:, None, :], axis=2),)
            written_bar = over_states(state_bar * of_states(keys, row, there, STATES), STATES, BLOCK)
            later_bar = kept(share, exponents) * state_bar
            # With respect to the natural logarithm of what is kept.
            log_keep_bar = later_bar * before[k]
            shares_bar += log_keep_bar * share[:, None, :]
            share_bar = over_states(log_keep_bar * exponents, STATES, BLOCK) * LN_2 + written_bar * value
            place, own = row * CHANNELS + columns, once(STATES) & there
            tl.store(values_bar + place, (written_bar * share).to(values_bar.dtype.element_ty), mask=own)
            tl.store(rate_bar + place, share_bar, mask=own)
        # Not before: threads meet here, and what comes after would not be loaded until they have met.
        for k in tl.static_range(HELD):
            place = (told + sample * time + token + k) * STATES + state_places(STATES)
            there = is_there(token + k, time)
            tl.store(queries_bar + place, query_bars[k], mask=there)
            tl.store(keys_bar + place, key_bars[HELD - 1 - k], mask=there)
    tl.store(decay_bar + whole, -shares_bar)
    if segment == 0:
        tl.store(first_bar + sample * STATES * CHANNELS + places, later_bar)
