"""A recurrence whose channels decay on their own by Triton, forward and back, in whole chunks.

Forward: what gates leave, the state's way from chunk to chunk, then all reads at once. Backward: the way of the state's
adjoint, then all that is left at once. What is kept between the two is the state at each chunk's start, in the
precision of the tokens.

Tokens are [batch, time, heads, width], as projections leave them, and so are gates. States are [batch, heads, key_dim,
value_dim] in 32 bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton import cdiv
from triton.tools.tensor_descriptor import TensorDescriptor

from lockstep.kernels.recurrences import flow
from lockstep.kernels.recurrences.channel_adjoints import channel_adjoint_kernel
from lockstep.kernels.recurrences.channel_decays import channel_decays
from lockstep.kernels.recurrences.channel_reads import channel_read_kernel
from lockstep.kernels.recurrences.channel_states import channel_chain_kernel
from lockstep.kernels.recurrences.flow import KEY_BLOCK, Tokens, sheet

NARROW = 32
"""Keys in half a block, or less."""


class Chunks(flow.Chunks):
    """One call: shapes as for a decayed recurrence.

    Where a block of keys is wider than they are, tiles are filled up with zeros, and of them nothing is stored.
    """

    def __init__(self, tokens: Tokens, chunk: int) -> None:
        super().__init__(tokens, chunk)
        self.since = channel_decays(tokens.log_keep, chunk)
        self.levels = chunk.bit_length() - 1

    def tiles(self, tokens: Tensor, columns: int) -> TensorDescriptor:
        """Tiles [chunk, columns] of what is as wide as keys."""
        return TensorDescriptor.from_tensor(tokens.transpose(1, 2), [1, 1, self.chunk, columns])

    def state_tiles(self, states: Tensor, rows: int) -> TensorDescriptor:
        return TensorDescriptor.from_tensor(states.flatten(0, 2), [1, rows, self.value_block])

    def sizes(self, key_block: int, *, backwards: bool) -> dict[str, Any]:
        return self.constants(backwards=backwards) | {"KEY_BLOCK": key_block}

    def states(self, keys: Tensor, values: Tensor, held: Tensor, *, backwards: bool = False) -> tuple[Tensor, Tensor]:
        """What each chunk meets, [batch, heads, chunks, key_dim, value_dim], and what the last one leaves."""
        last = held.clone()
        copies = keys.new_empty(self.batch, self.heads, self.chunks, self.key_dim, self.value_dim)
        blocks = cdiv(self.key_dim, KEY_BLOCK) * (self.value_dim // self.value_block)
        channel_chain_kernel[(self.rows * blocks,)](
            self.tiles(keys, KEY_BLOCK),
            sheet(values, self.chunk, self.value_block),
            self.since,
            last,
            self.state_tiles(copies, KEY_BLOCK),
            self.heads,
            self.chunks,
            num_stages=self.stages(self.chunks, 3),
            **self.sizes(KEY_BLOCK, backwards=backwards),
        )
        return copies, last

    def reads(
        self, queries: Tensor, keys: Tensor, values: Tensor, copies: Tensor, reads: Tensor, *, backwards: bool = False
    ) -> None:
        """All chunks side by side; `reads` are filled."""
        # Keys are only ever summed over here, and narrow ones take less to raise to a power.
        block = NARROW if self.key_dim <= NARROW else KEY_BLOCK
        channel_read_kernel[(self.rows * self.chunks * (self.value_dim // self.value_block),)](
            *(self.tiles(x, block) for x in (queries, keys)),
            sheet(values, self.chunk, self.value_block),
            self.since,
            self.state_tiles(copies, block),
            sheet(reads, self.chunk, self.value_block),
            self.heads,
            self.chunks,
            LEVELS=self.levels,
            num_stages=self.stages(cdiv(self.key_dim, block)),
            **self.sizes(block, backwards=backwards),
        )

    def token_adjoints(
        self,
        queries: Tensor,
        keys: Tensor,
        reads_bar: Tensor,
        values: Tensor,
        copies: Tensor,
        starts: Tensor,
        log_keep_bar: Tensor,
        *,
        backwards: bool = False,
    ) -> Tensor:
        """Of queries; what they say of the gates is written, or backwards added, to log_keep_bar."""
        queries_bar = torch.empty_like(queries)
        channel_adjoint_kernel[(self.rows * self.chunks * cdiv(self.key_dim, KEY_BLOCK),)](
            *(self.tiles(x, KEY_BLOCK) for x in (queries, keys)),
            *(sheet(x, self.chunk, self.value_block) for x in (reads_bar, values)),
            self.since,
            *(self.state_tiles(x, KEY_BLOCK) for x in (copies, starts)),
            self.tiles(queries_bar, KEY_BLOCK),
            log_keep_bar,
            self.heads,
            self.chunks,
            LEVELS=self.levels,
            num_stages=self.stages(self.value_dim // self.value_block),
            **self.sizes(KEY_BLOCK, backwards=backwards),
        )
        return queries_bar


def forward(tokens: Tokens, state: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Reads in 32 bits, the state after the last token, and the states at each chunk's start."""
    run, (queries, keys, values, _) = Chunks(tokens, chunk), tokens
    starts, last = run.states(keys, values, state)
    reads = torch.empty_like(values, dtype=torch.float32)
    run.reads(queries, keys, values, starts, reads)
    return reads, last, starts


def backward(
    tokens: Tokens, starts: Tensor, reads_bar: Tensor, last_bar: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Adjoints of the tokens and of the first state."""
    run, (queries, keys, values, log_keep) = Chunks(tokens, chunk), tokens
    reads_bar = reads_bar.to(values.dtype)
    ends_bar, state_bar = run.states(queries, reads_bar, last_bar, backwards=True)
    values_bar, log_keep_bar = torch.empty_like(values), torch.empty_like(log_keep)
    run.reads(keys, queries, reads_bar, ends_bar, values_bar, backwards=True)
    queries_bar = run.token_adjoints(queries, keys, reads_bar, values, starts, starts, log_keep_bar)
    keys_bar = run.token_adjoints(keys, queries, values, reads_bar, ends_bar, starts, log_keep_bar, backwards=True)
    return queries_bar, keys_bar, values_bar, log_keep_bar, state_bar
