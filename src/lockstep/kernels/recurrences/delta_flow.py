"""The delta rule by Triton, forward and back, in whole chunks.

Forward: what gates leave and how tokens of a chunk depend on each other, the memory's way from chunk to chunk, then all
reads at once. Backward: the way of the memory's adjoint, then all that is left at once. What is kept between the two
is, in the precision of the tokens, the memory at each chunk's start, what was written, and two matrices of a chunk.

Tokens are [batch, time, heads, width], as projections leave them. Rates and gates are [batch, heads, time], states
[batch, heads, key_dim, value_dim] in 32 bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lockstep.kernels.recurrences import flow
from lockstep.kernels.recurrences.decays import Shares, decays, through_decays
from lockstep.kernels.recurrences.delta_adjoints import delta_adjoint_kernel
from lockstep.kernels.recurrences.delta_reads import delta_read_kernel
from lockstep.kernels.recurrences.delta_solving import solve_kernel
from lockstep.kernels.recurrences.delta_states import unwrite_kernel, write_kernel
from lockstep.kernels.recurrences.flow import sheet

LEAST_RATE = 1e-12
"""Nobody sees what smaller rates write, and what was missing can still be told from it."""
SHORT_KEY = 128
"""Keys up to here leave room for the tiles of two chunks at once."""


class Tokens(NamedTuple):
    """What is written and read."""

    queries: Tensor  # [batch, time, heads, key_dim]
    keys: Tensor
    values: Tensor  # [batch, time, heads, value_dim]
    rate: Tensor  # [batch, heads, time]
    log_keep: Tensor


class Solved(NamedTuple):
    """What offers come to: see `delta_solving`."""

    written: Tensor  # X [batch, heads, time, chunk]
    read: Tensor  # P, likewise
    left: Tensor  # Zᵀ [batch, heads, chunks, key_dim, chunk]


class Kept(NamedTuple):
    """What the way back needs."""

    starts: Tensor  # [batch, heads, chunks, key_dim, value_dim]
    writes: Tensor  # [batch, time, heads, value_dim]
    read: Tensor
    left: Tensor


class Chunks(flow.Chunks):
    """One call: shapes and how work is split as for a decayed recurrence."""

    def __init__(self, tokens: Tokens, chunk: int) -> None:
        queries, keys, values, rate, log_keep = tokens
        super().__init__(flow.Tokens(queries, keys, values, log_keep), chunk)
        self.rate = torch.where(rate.abs() < LEAST_RATE, LEAST_RATE, rate)
        self.since, self.until = self.decays = decays(log_keep, chunk)

    @property
    def sizes(self) -> dict[str, Any]:
        sizes = self.constants(backwards=False)
        del sizes["BACKWARDS"]
        return sizes

    @property
    def walk(self) -> dict[str, Any]:
        """What programs are given that walk a row from chunk to chunk."""
        return self.sizes | {"num_stages": self.stages(self.chunks, 2 if self.key_dim <= SHORT_KEY else 1)}

    def square(self, x: Tensor) -> TensorDescriptor:
        """Tiles [chunk, chunk] of a matrix per chunk."""
        return TensorDescriptor.from_tensor(x.flatten(0, 2), [self.chunk, self.chunk])

    def tiles(self, *tokens: Tensor) -> list[TensorDescriptor]:
        """Tiles [chunk, value_block]."""
        return [sheet(x, self.chunk, self.value_block) for x in tokens]

    def states(self, like: Tensor) -> Tensor:
        """Room for one per chunk."""
        return like.new_empty(self.batch, self.heads, self.chunks, self.key_dim, self.value_dim)

    def solve(self, queries: Tensor, keys: Tensor) -> Solved:
        written, read = (keys.new_empty(self.batch, self.heads, self.time, self.chunk) for _ in range(2))
        left = keys.new_empty(self.batch, self.heads, self.chunks, self.key_dim, self.chunk)
        solve_kernel[(self.rows * self.chunks,)](
            *(sheet(x, self.chunk, self.key_block) for x in (queries, keys)),
            self.rate,
            *self.decays,
            self.square(written),
            self.square(read),
            sheet(left, self.key_block, self.chunk),
            self.heads,
            self.chunks,
            CHUNK=self.chunk,
            LEVELS=self.chunk.bit_length() - 1,
            KEY=self.key_dim,
            KEY_BLOCK=self.key_block,
            PRECISION=self.sizes["PRECISION"],
            num_stages=self.stages(self.key_dim // self.key_block),
        )
        return Solved(written, read, left)

    def write(self, keys: Tensor, values: Tensor, left: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The memory at each chunk's start, what is offered, and the memory after the last token."""
        last, offers, starts = state.clone(), torch.empty_like(values), self.states(keys)
        write_kernel[(self.rows * self.value_dim // self.value_block,)](
            sheet(keys, self.chunk, self.key_dim),
            *self.tiles(values),
            sheet(left, self.key_dim, self.chunk),
            self.rate,
            self.since,
            last,
            sheet(starts, self.key_dim, self.value_block),
            *self.tiles(offers),
            self.heads,
            self.chunks,
            **self.walk,
        )
        return starts, offers, last

    def reads(self, queries: Tensor, offers: Tensor, solved: Solved, starts: Tensor) -> tuple[Tensor, Tensor]:
        """In 32 bits, and what is written."""
        reads, writes = torch.empty_like(offers, dtype=torch.float32), torch.empty_like(offers)
        delta_read_kernel[(self.rows * self.chunks * self.value_dim // self.value_block,)](
            sheet(queries, self.chunk, self.key_dim),
            *self.tiles(offers),
            self.square(solved.written),
            self.square(solved.read),
            self.since,
            sheet(starts, self.key_dim, self.value_block),
            *self.tiles(reads, writes),
            self.heads,
            self.chunks,
            **self.sizes,
        )
        return reads, writes

    def unwrite(
        self, queries: Tensor, keys: Tensor, reads_bar: Tensor, kept: Kept, last_bar: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Adjoints of the memory at each chunk's end, of values, and of the first state."""
        state_bar, values_bar, ends_bar = last_bar.clone(), torch.empty_like(reads_bar), self.states(keys)
        unwrite_kernel[(self.rows * self.value_dim // self.value_block,)](
            *(sheet(x, self.chunk, self.key_dim) for x in (queries, keys)),
            *self.tiles(reads_bar),
            self.square(kept.read),
            sheet(kept.left, self.key_dim, self.chunk),
            self.rate,
            self.since,
            state_bar,
            sheet(ends_bar, self.key_dim, self.value_block),
            *self.tiles(values_bar),
            self.heads,
            self.chunks,
            **self.walk,
        )
        return ends_bar, values_bar, state_bar

    def token_adjoints(
        self, tokens: Tokens, kept: Kept, reads_bar: Tensor, values_bar: Tensor, ends_bar: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of queries, keys, rates and gates."""
        queries, keys, _, rate, log_keep = tokens
        blocks = self.key_dim // self.key_block
        queries_bar, keys_bar, rate_bar = map(torch.empty_like, (queries, keys, rate))
        told = [rate.new_empty(blocks, *rate.shape) for _ in range(4)]
        crossing = rate.new_empty(blocks, self.batch, self.heads, self.chunks)
        delta_adjoint_kernel[(self.rows * self.chunks * blocks,)](
            *(sheet(x, self.chunk, self.key_block) for x in (queries, keys)),
            *self.tiles(reads_bar, values_bar, kept.writes),
            self.rate,
            *self.decays,
            *(sheet(x, self.key_block, self.value_block) for x in (kept.starts, ends_bar)),
            *(sheet(x, self.chunk, self.key_block) for x in (queries_bar, keys_bar)),
            rate_bar,
            *told,
            crossing,
            self.rows,
            self.heads,
            self.chunks,
            KEY_BLOCK=self.key_block,
            num_stages=self.stages(self.value_dim // self.value_block),
            **self.sizes,
        )
        shares = Shares(*told[:2]), Shares(*told[2:])
        return queries_bar, keys_bar, rate_bar, through_decays(log_keep, self.decays, *shares, crossing, self.chunk)


def forward(tokens: Tokens, state: Tensor, chunk: int) -> tuple[Tensor, Tensor, Kept]:
    """Reads in 32 bits, the state after the last token, and what the way back needs."""
    run, (queries, keys, values, _, _) = Chunks(tokens, chunk), tokens
    solved = run.solve(queries, keys)
    starts, offers, last = run.write(keys, values, solved.left, state)
    reads, writes = run.reads(queries, offers, solved, starts)
    return reads, last, Kept(starts, writes, solved.read, solved.left)


def backward(
    tokens: Tokens, kept: Kept, reads_bar: Tensor, last_bar: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Adjoints of the tokens and of the first state."""
    run, reads_bar = Chunks(tokens, chunk), reads_bar.to(tokens.values.dtype)
    ends_bar, values_bar, state_bar = run.unwrite(tokens.queries, tokens.keys, reads_bar, kept, last_bar)
    queries_bar, keys_bar, rate_bar, log_keep_bar = run.token_adjoints(tokens, kept, reads_bar, values_bar, ends_bar)
    return queries_bar, keys_bar, values_bar, rate_bar, log_keep_bar, state_bar
