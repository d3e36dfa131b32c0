"""How much of each write is in the memory after each token, and the derivative of that, chunk by chunk.

What `lockstep.memory.coefficients` has in closed form is computed as it is defined, token by token: with a row for the
velocity, G_t = momentum_t G_(t-1) + rate_t e_t, and one for the memory, C_t = keep_t C_(t-1) + G_t. That is far less
work than products of matrices, and there are chunks enough to keep a device busy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 256
"""Numbers in a program's tiles: eight for each thread of its one warp, which are 16 bytes of a row in 16 bits."""
SECTOR = tl.constexpr(16)
"""Numbers of a row that are fetched together, or together left where they are: above the diagonal."""
LEAST = tl.constexpr(2.0**-32)
"""What a gate of zero counts as where it needs a logarithm; beside what is not forgotten, such a share is nothing."""


class Coefficients(NamedTuple):
    """Of all chunks, as `lockstep.memory.coefficients` has them; [rows, time] each."""

    kept: Tensor
    carried: Tensor
    written: Tensor  # [rows, time, chunk]
    end_written: Tensor
    velocity_kept: Tensor
    end_velocity_written: Tensor

    @property
    def ends(self) -> tuple[Tensor, ...]:
        """What the memory's way needs."""
        return self.kept, self.carried, *self[3:]


def coefficients(keep: Tensor, rate: Tensor, momentum: Tensor | None, written: Tensor) -> Coefficients:
    """Of gates [rows, time]; `written` is room for what it is called after."""
    kept, carried, *ends = (torch.empty_like(keep) for _ in range(5))
    found = Coefficients(kept, carried, written, *ends)
    grid, sizes = launch(written, momentum)
    coefficients_kernel[grid](keep, rate, momentum, *found, **sizes)
    return found


def through_coefficients(
    keep: Tensor,
    rate: Tensor,
    momentum: Tensor | None,
    found: Coefficients,
    read_bar: tuple[Tensor, Tensor, Tensor],
    ends_bar: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """Adjoints of the gates, from those of the first three coefficients by what is read, and of all by each end."""
    gates_bar = torch.empty_like(keep), torch.empty_like(keep), torch.empty_like(keep)
    grid, sizes = launch(found.written, momentum)
    known = found.kept, found.carried, found.written, found.velocity_kept
    coefficients_backward_kernel[grid](keep, rate, momentum, *known, *read_bar, *ends_bar, *gates_bar, **sizes)
    return gates_bar


def launch(written: Tensor, momentum: Tensor | None) -> tuple[tuple[int], dict[str, Any]]:
    """How many programs, and the sizes they are given."""
    rows, time, chunk = written.shape
    chunks, together = rows * time // chunk, max(1, TILE // chunk)
    sizes = {"CHUNK": chunk, "TOGETHER": together, "MOMENTUM": momentum is not None}
    return (triton.cdiv(chunks, together),), {"chunks": chunks, **sizes, "num_warps": 1}


@triton.jit
def own_chunks(chunks: int, TOGETHER: tl.constexpr) -> tl.tensor:
    """A program's chunks; after the last of all comes the last again, which does no harm."""
    chunk = tl.program_id(0) * TOGETHER + tl.arange(0, TOGETHER)
    return tl.minimum(chunk, chunks - 1).to(tl.int64)


@triton.jit
def followed(
    product: tl.tensor, total: tl.tensor, then_product: tl.tensor, then_total: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Two stretches of x_t = g_t x_(t-1) + y_t as one: the product of its gates, and what it leaves of nothing."""
    return product * then_product, total * then_product + then_total


@triton.jit
def coefficients_kernel(
    keep: tl.tensor,  # gates [rows, time]
    rate: tl.tensor,
    momentum: tl.tensor,
    kept: tl.tensor,  # b [rows, time]
    carried: tl.tensor,  # f [rows, time]
    written: tl.tensor,  # C [rows, time, CHUNK]
    end_written: tl.tensor,  # the last row of C in each chunk [rows, time]
    velocity_kept: tl.tensor,  # h [rows, time]
    end_velocity_written: tl.tensor,  # the last row of G in each chunk [rows, time]
    chunks: int,
    CHUNK: tl.constexpr,
    TOGETHER: tl.constexpr,
    MOMENTUM: tl.constexpr,
) -> None:
    """One program is TOGETHER chunks, each a row of its tiles [TOGETHER, CHUNK]."""
    first = own_chunks(chunks, TOGETHER) * CHUNK
    source = tl.arange(0, CHUNK)[None, :]
    tokens = first[:, None] + source
    rates, keeps = tl.load(rate + tokens), tl.load(keep + tokens)
    if MOMENTUM:
        from_start = tl.cumprod(tl.load(momentum + tokens), axis=1)
        remaining, gathered = tl.associative_scan((keeps, from_start), 1, followed)
        tl.store(carried + tokens, gathered)
        tl.store(velocity_kept + tokens, from_start)
    else:
        remaining = tl.cumprod(keeps, axis=1)
    tl.store(kept + tokens, remaining)
    shares = tl.zeros([TOGETHER, CHUNK], tl.float32)
    velocity = tl.zeros([TOGETHER, CHUNK], tl.float32)
    for t in range(CHUNK):
        shares *= tl.load(keep + first + t)[:, None]
        if MOMENTUM:
            velocity = tl.where(source == t, rates, velocity * tl.load(momentum + first + t)[:, None])
            shares += velocity
        else:
            shares = tl.where(source == t, rates, shares)
        tl.store(written + (first + t)[:, None] * CHUNK + source, shares.to(written.dtype.element_ty))
    tl.store(end_written + tokens, shares)
    if MOMENTUM:
        tl.store(end_velocity_written + tokens, velocity)


@triton.jit
def coefficients_backward_kernel(
    keep: tl.tensor,
    rate: tl.tensor,
    momentum: tl.tensor,
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    written: tl.tensor,  # [rows, time, CHUNK]
    velocity_kept: tl.tensor,  # [rows, time]
    kept_bar: tl.tensor,  # [rows, time], by what is read
    carried_bar: tl.tensor,
    written_bar: tl.tensor,  # [rows, time, CHUNK]; what stands above a diagonal is never used
    end_kept_bar: tl.tensor,  # [rows, chunks], by where the memory goes
    end_carried_bar: tl.tensor,
    end_written_bar: tl.tensor,  # [rows, time]
    end_velocity_kept_bar: tl.tensor,  # [rows, chunks]
    end_velocity_written_bar: tl.tensor,  # [rows, time]
    keep_bar: tl.tensor,  # [rows, time]
    rate_bar: tl.tensor,
    momentum_bar: tl.tensor,
    chunks: int,
    CHUNK: tl.constexpr,
    TOGETHER: tl.constexpr,
    MOMENTUM: tl.constexpr,
) -> None:
    """The same chunks from their last token to their first.

    Rows of C are at hand. Those of G nobody kept: each is computed by itself, products of gates being powers of two of
    differences between sums of logarithms.
    """
    chunk = own_chunks(chunks, TOGETHER)
    first = chunk * CHUNK
    source = tl.arange(0, CHUNK)[None, :]
    sector = source // SECTOR * SECTOR
    tokens = first[:, None] + source
    shares_bar, share_bar = tl.load(end_written_bar + tokens), tl.load(end_kept_bar + chunk)
    keeping = tl.full([TOGETHER], 1.0, tl.float32)  # the gate between a token and the one after it
    keeps_bar = tl.zeros([TOGETHER, CHUNK], tl.float32)
    rates_bar = tl.zeros([TOGETHER, CHUNK], tl.float32)
    if MOMENTUM:
        velocity_bar, carry_bar = tl.load(end_velocity_written_bar + tokens), tl.load(end_carried_bar + chunk)
        start_bar = tl.load(end_velocity_kept_bar + chunk)
        moving = tl.full([TOGETHER], 1.0, tl.float32)
        moments_bar = tl.zeros([TOGETHER, CHUNK], tl.float32)
        rates = tl.load(rate + tokens)
        exponents = tl.cumsum(tl.log2(tl.maximum(tl.load(momentum + tokens), LEAST)), axis=1)
        # To be read one by one, they wait where the adjoint will be.
        tl.store(momentum_bar + tokens, exponents)
        tl.debug_barrier()
    # Two at a time, so that the second's numbers are on their way while the first is worked on.
    for step in tl.range(CHUNK, loop_unroll_factor=2):
        t = CHUNK - 1 - step
        token, now = first + t, source == t
        inside = token > first  # there is a token before it
        row = token[:, None] * CHUNK + source
        by_reads = tl.load(written_bar + row, mask=sector <= t, other=0.0).to(tl.float32)
        shares = tl.load(written + row - CHUNK, mask=sector < t, other=0.0).to(tl.float32)
        shares_bar = shares_bar * keeping[:, None] + by_reads
        share_bar = share_bar * keeping + tl.load(kept_bar + token)
        bar = tl.sum(shares_bar * shares, axis=1) + share_bar * tl.load(kept + token - 1, mask=inside, other=1.0)
        if MOMENTUM:
            carry_bar = carry_bar * keeping + tl.load(carried_bar + token)
            bar += carry_bar * tl.load(carried + token - 1, mask=inside, other=0.0)
            velocity_bar = velocity_bar * moving[:, None] + shares_bar
            start_bar = start_bar * moving + carry_bar
            rates_bar = tl.where(now, velocity_bar, rates_bar)
            # From here on a token's own write, and those after it, are none.
            exponents = tl.where(now, float("inf"), exponents)
            before = tl.load(momentum_bar + token - 1, mask=inside, other=0.0)
            velocity = rates * tl.exp2(before[:, None] - exponents)
            moment_bar = tl.sum(velocity_bar * velocity, axis=1)
            moment_bar += start_bar * tl.load(velocity_kept + token - 1, mask=inside, other=1.0)
            moments_bar = tl.where(now, moment_bar[:, None], moments_bar)
            moving = tl.load(momentum + token)
        else:
            rates_bar = tl.where(now, shares_bar, rates_bar)
        keeps_bar = tl.where(now, bar[:, None], keeps_bar)
        keeping = tl.load(keep + token)
    tl.store(keep_bar + tokens, keeps_bar)
    tl.store(rate_bar + tokens, rates_bar)
    if MOMENTUM:
        tl.store(momentum_bar + tokens, moments_bar)
