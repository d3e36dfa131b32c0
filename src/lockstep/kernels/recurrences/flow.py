"""A decayed recurrence by Triton, forward and back, in whole chunks.

Forward: what gates leave, the state's way from chunk to chunk, then all reads at once. Backward: the way of the state's
adjoint, then all that is left at once. What is kept between the two is the state at each chunk's start, in the
precision of the tokens.

Tokens are [batch, time, groups or heads, width], as projections leave them: neighbouring heads of values share a group
of keys and queries. Gates are [batch, heads, time], states [batch, heads, key_dim, value_dim] in 32 bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lockstep.kernels.recurrences.adjoints import adjoint_kernel
from lockstep.kernels.recurrences.decays import Shares, decays, through_decays
from lockstep.kernels.recurrences.reads import read_kernel
from lockstep.kernels.recurrences.states import chain_kernel

PROGRAMS = 512
"""Enough to keep a large device busy: work is split among programs up to here."""
WALKERS = 128
"""The same for programs that walk a row from chunk to chunk, of which more would only read the same tokens again."""
KEY_BLOCK, VALUE_BLOCK = 64, 64
"""The largest of a program; that of keys is as long as a chunk if this is longer."""
WARPS, ROWS_OF_A_WARP = 4, 16
"""The least of a program; in long chunks no warp has more rows of a tile than here, and registers hold the tiles."""
LONG_KEY = 128
"""Keys up to here leave room for the tiles of three rounds at once."""
CHAIN_KEYS = 128
"""The same for those that walk, of keys."""
SHORTEST, NARROWEST = 64, 16
"""The smallest of those that walk, of keys and of values."""


class Tokens(NamedTuple):
    """What is written and read."""

    queries: Tensor  # [batch, time, groups, key_dim]
    keys: Tensor
    values: Tensor  # [batch, time, heads, value_dim]
    log_keep: Tensor  # [batch, heads, time]; where channels decay alone, [batch, time, heads, key_dim]


class Chunks:
    """One call: shapes, constants, and how work is split."""

    def __init__(self, tokens: Tokens, chunk: int) -> None:
        self.chunk = chunk
        self.batch, self.time, self.heads, self.value_dim = tokens.values.shape
        self.groups, self.key_dim = tokens.keys.shape[2:]
        self.chunks, self.rows = self.time // chunk, self.batch * self.heads
        self.key_block = min(self.key_dim, max(KEY_BLOCK, chunk))
        # The largest power of two that divides, which is what a tile may measure.
        self.value_block = min(self.value_dim & -self.value_dim, VALUE_BLOCK)
        self.exact = tokens.keys.dtype == torch.float32

    def constants(self, *, backwards: bool) -> dict[str, Any]:
        return {
            "CHUNK": self.chunk,
            "KEY": self.key_dim,
            "VALUE": self.value_dim,
            "VALUE_BLOCK": self.value_block,
            "BACKWARDS": backwards,
            # Three passes of the matrix units give 32-bit operands nearly all of their 32 bits.
            "PRECISION": "tf32x3" if self.exact else "tf32",
        }

    def stages(self, rounds: int, wanted: int = 2) -> int:
        """Rounds of a loop whose tiles are held at once; 32 bits leave no room for that.

        Tiles are asked for at a round's end: with two they are waited for at once, with three a round later.
        """
        return 1 if self.exact else min(rounds, wanted)

    @property
    def rounds(self) -> int:
        """Of programs that go through heads."""
        return 3 if self.key_dim <= LONG_KEY else 2

    def warps(self, rows: int) -> int:
        """Of a program with tiles of so many rows; more than they fill would have to share columns."""
        return max(WARPS, min(rows, self.chunk) // ROWS_OF_A_WARP)

    def span(self, blocks: int) -> int:
        """Heads of a program, all of one group: the more, the less is done twice, but few programs leave some idle."""
        span, programs = self.heads // self.groups, self.batch * self.chunks * self.groups * blocks
        while span % 2 == 0 and programs < PROGRAMS:
            span, programs = span // 2, programs * 2
        return span

    @property
    def chain_blocks(self) -> tuple[int, int]:
        """Of keys and values, for the way from chunk to chunk, on which few rows are split among more programs."""
        keys, values = min(self.key_dim, CHAIN_KEYS), self.value_block
        whole = self.rows * self.key_dim * self.value_dim
        while whole < WALKERS * keys * values and values > NARROWEST:
            values //= 2
        while whole < WALKERS * keys * values and keys > SHORTEST:
            keys //= 2
        return keys, values

    def chain(
        self, keys: Tensor, values: Tensor, since: Tensor, shares: Tensor, held: Tensor, *, backwards: bool = False
    ) -> tuple[Tensor, Tensor]:
        """What each chunk meets, [batch, heads, chunks, key_dim, value_dim], and what the last one leaves."""
        last = held.clone()
        copies = keys.new_empty(self.batch, self.heads, self.chunks, self.key_dim, self.value_dim)
        key_block, value_block = self.chain_blocks
        blocks = (self.key_dim // key_block) * (self.value_dim // value_block)
        chain_kernel[(self.rows * blocks,)](
            sheet(keys, self.chunk, key_block),
            sheet(values, self.chunk, value_block),
            since,
            shares,
            last,
            sheet(copies, key_block, value_block),
            self.heads,
            self.groups,
            self.chunks,
            KEY_BLOCK=key_block,
            num_warps=self.warps(key_block),
            num_stages=self.stages(self.chunks, 3),
            **self.constants(backwards=backwards) | {"VALUE_BLOCK": value_block},
        )
        return copies, last

    def read(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        since: Tensor,
        shares: Tensor,
        copies: Tensor,
        reads: Tensor,
        *,
        backwards: bool = False,
    ) -> None:
        """All chunks side by side; `reads` are filled."""
        blocks = self.value_dim // self.value_block
        span = self.span(blocks)
        read_kernel[(self.batch * self.chunks * (self.heads // span) * blocks,)](
            *(sheet(x, self.chunk, self.key_dim) for x in (queries, keys)),
            sheet(values, self.chunk, self.value_block),
            since,
            shares,
            sheet(copies, self.key_dim, self.value_block),
            sheet(reads, self.chunk, self.value_block),
            self.heads,
            self.groups,
            self.chunks,
            span,
            num_warps=self.warps(self.chunk),
            num_stages=self.stages(span, self.rounds),
            **self.constants(backwards=backwards),
        )

    def adjoints(
        self,
        queries: Tensor,
        keys: Tensor,
        reads_bar: Tensor,
        values: Tensor,
        since: Tensor,
        shares: Tensor,
        copies: Tensor,
        starts: Tensor,
        *,
        backwards: bool = False,
    ) -> tuple[Tensor, Shares, Tensor]:
        """Of queries, what they say of the gates, and, backwards, the states that go through chunks."""
        blocks = self.key_dim // self.key_block
        span = self.span(blocks)
        parts = self.heads // span
        precision = torch.float32 if parts > self.groups else queries.dtype
        queries_bar = queries.new_empty(self.batch, self.time, parts, self.key_dim, dtype=precision)
        shape = blocks, self.batch, self.heads
        near, far = (shares.new_empty(*shape, self.time) for _ in range(2))
        crossing = shares.new_empty(*shape, self.chunks)
        adjoint_kernel[(self.batch * self.chunks * parts * blocks,)](
            *(sheet(x, self.chunk, self.key_block) for x in (queries, keys)),
            *(sheet(x, self.chunk, self.value_block) for x in (reads_bar, values)),
            since,
            shares,
            sheet(copies, self.key_block, self.value_block),
            starts,
            sheet(queries_bar, self.chunk, self.key_block),
            near,
            far,
            crossing,
            self.rows,
            self.heads,
            self.groups,
            self.chunks,
            span,
            KEY_BLOCK=self.key_block,
            num_warps=self.warps(self.chunk),
            num_stages=self.stages(span * self.value_dim // self.value_block, self.rounds),
            **self.constants(backwards=backwards),
        )
        if parts > self.groups:
            queries_bar = queries_bar.unflatten(2, (self.groups, -1)).sum(3).to(queries.dtype)
        return queries_bar, Shares(near, far), crossing


def sheet(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Tiles [rows, columns] of tokens, one below the other with their heads side by side, or of states."""
    flat = x.flatten(0, 1).flatten(1) if x.ndim == 4 else x.flatten(0, 3)
    return TensorDescriptor.from_tensor(flat, [rows, columns])


def forward(tokens: Tokens, state: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Reads in the tokens' precision, the state after the last token, and the states at each chunk's start."""
    run, (since, until) = Chunks(tokens, chunk), decays(tokens.log_keep, chunk)
    queries, keys, values, _ = tokens
    starts, last = run.chain(keys, values, since, until, state)
    reads = torch.empty_like(values)
    run.read(queries, keys, values, since, since, starts, reads)
    return reads, last, starts


def backward(
    tokens: Tokens, starts: Tensor, reads_bar: Tensor, last_bar: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Adjoints of the tokens and of the first state."""
    run, found = Chunks(tokens, chunk), decays(tokens.log_keep, chunk)
    (since, until), (queries, keys, values, log_keep) = found, tokens
    reads_bar = reads_bar.to(values.dtype)
    ends_bar, state_bar = run.chain(queries, reads_bar, since, since, last_bar, backwards=True)
    values_bar = torch.empty_like(values)
    run.read(keys, queries, reads_bar, since, until, ends_bar, values_bar, backwards=True)
    queries_bar, of_queries, _ = run.adjoints(queries, keys, reads_bar, values, since, since, starts, starts)
    keys_bar, of_keys, crossing = run.adjoints(
        keys, queries, values, reads_bar, since, until, ends_bar, starts, backwards=True
    )
    log_keep_bar = through_decays(log_keep, found, of_queries, of_keys, crossing, chunk)
    return queries_bar, keys_bar, values_bar, log_keep_bar, state_bar
