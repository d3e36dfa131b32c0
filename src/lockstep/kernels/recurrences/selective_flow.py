"""A selective scan by Triton, forward and back.

Time is cut into segments, as many as it takes to keep a large device busy. What each does to a state is found for all
of them at once, then the states between them, then all reads. Backward it is the same for the state's adjoint, then all
that is left at once. What is kept between the two is the state before every `SPAN` tokens, in the precision of values.

Tokens are [batch, time, d_state or channels] in one piece, states [batch, d_state, channels] in 32 bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
from torch import Tensor

from lockstep.kernels.recurrences.selective import TILE
from lockstep.kernels.recurrences.selective_adjoints import adjoint_kernel
from lockstep.kernels.recurrences.selective_reads import read_kernel
from lockstep.kernels.recurrences.selective_states import join_kernel, segment_kernel

PROGRAMS = 4096
"""Enough to keep a large device busy; they are one warp each."""
SHORTEST = 64
"""Tokens of a segment, of which more would cost more than they bring: each has a state written and read."""
SPAN = 8
"""Tokens between two states that are kept for the way back."""
HELD = 4
"""Tokens whose states a program has in its registers on the way back."""
REGISTERS = 200
"""Of a thread on the way back: it would take all there are, and leave fewer warps to work while others wait."""


class Tokens(NamedTuple):
    """What is written and read, and what is forgotten."""

    queries: Tensor  # [batch, time, d_state]
    keys: Tensor
    values: Tensor  # [batch, time, channels]
    rate: Tensor
    decay: Tensor  # [d_state, channels]


def kept_starts(tokens: Tokens) -> Tensor:
    """Room for the states that are kept, [batch, spans, d_state, channels]."""
    batch, time = tokens.values.shape[:2]
    return tokens.values.new_empty(batch, -(-time // SPAN), *tokens.decay.shape)


class Segments:
    """One call: shapes, constants, and how work is split."""

    def __init__(self, tokens: Tokens) -> None:
        self.given = tokens
        self.batch, self.time, self.channels = tokens.values.shape
        self.d_state = tokens.keys.shape[2]
        self.block = TILE // self.d_state
        self.blocks, self.spans = self.channels // self.block, triton.cdiv(self.time, SPAN)
        wanted = min(triton.cdiv(PROGRAMS, self.batch * self.blocks), triton.cdiv(self.time, SHORTEST))
        self.tokens = triton.cdiv(triton.cdiv(self.time, wanted), SPAN) * SPAN
        self.segments = triton.cdiv(self.time, self.tokens)

    def constants(self, **more: Any) -> dict[str, Any]:
        sizes = {"STATES": self.d_state, "CHANNELS": self.channels, "BLOCK": self.block}
        # A program is one warp: see `selective_states.EACH`.
        return sizes | {"num_warps": 1} | more

    def states(self) -> Tensor:
        """Room for one per segment, [batch, segments, d_state, channels]."""
        return self.given.rate.new_empty(self.batch, self.segments, self.d_state, self.channels)

    def met(self, keys: Tensor, values: Tensor, first: Tensor, *, backwards: bool = False) -> Tensor:
        """What each segment meets, [batch, segments, d_state, channels]."""
        if self.segments == 1:
            return first[:, None]
        decay, constants = self.given.decay, self.constants(BACKWARDS=backwards)
        written, met, passed = self.states(), self.states(), first.new_empty(self.batch, self.segments, self.channels)
        segment_kernel[(self.batch * (self.segments - 1) * self.blocks,)](
            keys, values, self.given.rate, decay, written, passed, self.time, self.segments, self.tokens, **constants
        )
        join_kernel[(self.batch * self.blocks,)](first, decay, written, passed, met, self.segments, **constants)
        return met


def forward(tokens: Tokens, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reads, the state after the last token, and the states that are kept."""
    run = Segments(tokens)
    met = run.met(tokens.keys, tokens.values, state)
    reads, last, starts = tokens.rate.new_empty(tokens.rate.shape), state.new_empty(state.shape), kept_starts(tokens)
    read_kernel[(run.batch * run.segments * run.blocks,)](
        *tokens,
        met,
        reads,
        starts,
        last,
        run.time,
        run.segments,
        run.tokens,
        run.spans,
        **run.constants(SPAN=SPAN),
    )
    return reads, last, starts


def backward(tokens: Tokens, starts: Tensor, reads_bar: Tensor, last_bar: Tensor) -> tuple[Tensor, ...]:
    """Adjoints of the tokens, of the decay and of the first state."""
    run = Segments(tokens)
    met = run.met(tokens.queries, reads_bar, last_bar, backwards=True)
    by_blocks = run.blocks, run.batch, run.time, run.d_state
    queries_bar, keys_bar = (reads_bar.new_empty(by_blocks) for _ in range(2))
    values_bar, rate_bar = (x.new_empty(x.shape) for x in (tokens.values, tokens.rate))
    decay_bar, first_bar = run.states(), last_bar.new_empty(last_bar.shape)
    adjoint_kernel[(run.batch * run.segments * run.blocks,)](
        *tokens,
        starts,
        reads_bar,
        met,
        queries_bar,
        keys_bar,
        values_bar,
        rate_bar,
        decay_bar,
        first_bar,
        run.batch,
        run.time,
        run.segments,
        run.tokens,
        run.spans,
        **run.constants(SPAN=SPAN, HELD=HELD, maxnreg=REGISTERS),
    )
    queries_bar, keys_bar = queries_bar.sum(0).to(tokens.queries.dtype), keys_bar.sum(0).to(tokens.keys.dtype)
    return queries_bar, keys_bar, values_bar, rate_bar, decay_bar.sum((0, 1)), first_bar
