"""What is read of the states, all segments side by side, and those of them that are kept for the way back."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.recurrences.selective_states import EACH, after, exponents_of, is_there, of_states, once, own_part


@triton.jit
def over_states(numbers: tl.tensor, STATES: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """The sum of [STATES / EACH, EACH, BLOCK] for each channel, [STATES / EACH, BLOCK] with all rows alike."""
    return tl.broadcast_to(tl.sum(tl.sum(numbers, axis=1), axis=0)[None, :], [STATES // EACH, BLOCK])


@triton.jit
def read_kernel(
    queries: tl.tensor,  # [batch, time, STATES]
    keys: tl.tensor,
    values: tl.tensor,  # [batch, time, CHANNELS]
    rate: tl.tensor,
    decay: tl.tensor,  # [STATES, CHANNELS]
    met: tl.tensor,  # [batch, segments, STATES, CHANNELS]: the state before a segment
    reads: tl.tensor,  # [batch, time, CHANNELS]; out
    starts: tl.tensor,  # [batch, spans, STATES, CHANNELS]; out: the state before every span of tokens
    last: tl.tensor,  # [batch, STATES, CHANNELS]; out
    time: int,
    segments: int,
    tokens: int,  # of a segment, in whole spans
    spans: int,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
) -> None:
    """A program has one segment, and a block of its channels."""
    sample, segment, columns, places = own_part(segments, STATES, CHANNELS, BLOCK)
    exponents = exponents_of(decay, places)
    state = tl.load(met + (sample * segments + segment) * STATES * CHANNELS + places)
    first = segment * (tokens // SPAN)
    for i in range(tl.minimum(tokens // SPAN, spans - first)):
        span = first + i
        start = starts + (sample * spans + span) * STATES * CHANNELS + places
        tl.store(start, state.to(starts.dtype.element_ty))
        for j in tl.static_range(SPAN):
            token = span * SPAN + j
            row, there = sample * time + token, is_there(token, time)
            state = after(state, exponents, keys, values, rate, row, there, columns, STATES, CHANNELS)
            read = over_states(of_states(queries, row, there, STATES) * state, STATES, BLOCK)
            tl.store(reads + row * CHANNELS + columns, read, mask=once(STATES) & there)
    if segment == segments - 1:
        tl.store(last + sample * STATES * CHANNELS + places, state)
