"""How much of each write is in the memory after each token, and the derivative of that, chunk by chunk.

The closed form is that of `lockstep.memory.coefficients`: with A and H the products of keep and momentum between two
tokens, C = A H diag(rate) and f = A h.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.memory.tiles import place, product

LEAST = tl.constexpr(1e-10)
"""What a gate of zero counts as, so that it has a logarithm; nothing that is kept depends on it."""


class Coefficients(NamedTuple):
    """Of all chunks, as `lockstep.memory.coefficients` has them; [rows, time] each."""

    kept: Tensor
    carried: Tensor
    written: Tensor  # [rows, time, chunk]
    end_written: Tensor
    end_velocity_kept: Tensor
    end_velocity_written: Tensor

    @property
    def ends(self) -> tuple[Tensor, ...]:
        """What the memory's way needs."""
        return self.kept, self.carried, *self[3:]


@triton.jit
def exponents(gates: tl.tensor) -> tl.tensor:
    """Logarithms of the products from the chunk's start to each token."""
    return tl.cumsum(tl.log2(tl.maximum(gates, LEAST)), axis=0)


@triton.jit
def products(
    last: tl.tensor, first: tl.tensor, BACK: tl.constexpr, CHUNK: tl.constexpr, AXIS: tl.constexpr
) -> tl.tensor:
    """Products of gates over all tokens after one and up to another, which AXIS counts; zero where it comes first.

    From their exponents: `last` up to that token, or with BACK = 1 up to the one before it.
    """
    index = tl.arange(0, CHUNK)
    if AXIS == 0:
        there, exponent = index[:, None] >= index[None, :] + BACK, last[:, None] - first[None, :]
    else:
        there, exponent = index[None, :] >= index[:, None] + BACK, last[None, :] - first[:, None]
    return tl.exp2(tl.where(there, exponent, float("-inf")))


@triton.jit
def last_row(x: tl.tensor, CHUNK: tl.constexpr) -> tl.tensor:
    return tl.sum(tl.where(tl.arange(0, CHUNK)[:, None] == CHUNK - 1, x, 0.0), axis=0)


@triton.jit
def coefficients_kernel(
    keep: tl.tensor,  # gates [rows, time]
    rate: tl.tensor,
    momentum: tl.tensor,
    kept: tl.tensor,  # b [rows, time]
    carried: tl.tensor,  # f [rows, time]
    written: tl.tensor,  # C [rows, time, CHUNK]
    end_written: tl.tensor,  # the last row of C in each chunk [rows, time]
    end_velocity_kept: tl.tensor,  # h, of which the last of a chunk matters [rows, time]
    end_velocity_written: tl.tensor,  # the last row of G in each chunk [rows, time]
    CHUNK: tl.constexpr,
    MOMENTUM: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program is one chunk."""
    chunk = tl.program_id(0).to(tl.int64)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    rates = tl.load(rate + token)
    keeps = exponents(tl.load(keep + token))
    tl.store(kept + token, tl.exp2(keeps))
    between = products(keeps, keeps, 0, CHUNK, 0)
    if MOMENTUM:
        moments = exponents(tl.load(momentum + token))
        from_start = tl.exp2(moments)
        velocity = products(moments, moments, 0, CHUNK, 0) * rates[None, :]
        shares = product(between, velocity, PRECISION)
        tl.store(carried + token, tl.sum(between * from_start[None, :], axis=1))
        tl.store(end_velocity_kept + token, from_start)
        tl.store(end_velocity_written + token, last_row(velocity, CHUNK))
    else:
        shares = between * rates[None, :]
    tl.store(end_written + token, last_row(shares, CHUNK))
    tl.store(written + chunk * CHUNK * CHUNK + place(CHUNK, CHUNK, CHUNK), shares.to(written.dtype.element_ty))


@triton.jit
def through_products(
    bar: tl.tensor, sums: tl.tensor, sums_before: tl.tensor, CHUNK: tl.constexpr, PRECISION: tl.constexpr
) -> tl.tensor:
    """The adjoint of gates from that of their products P, the inverse of 1 - diag(g)·shift: dP = P diag(dg) shift P."""
    later = product(products(sums, sums, 0, CHUNK, 1), bar, PRECISION)
    return tl.sum(later * products(sums_before, sums, 1, CHUNK, 0), axis=1)


@triton.jit
def through_start(
    bar: tl.tensor, sums: tl.tensor, gates: tl.tensor, CHUNK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Products from the chunk's start are the first gate times the products after it: adjoints of these two."""
    index = tl.arange(0, CHUNK)
    first = tl.sum(tl.where(index == 0, gates, 0.0), axis=0)
    first_sum = tl.sum(tl.where(index == 0, sums, 0.0), axis=0)
    gates_bar = tl.where(index == 0, tl.sum(bar * tl.exp2(sums - first_sum), axis=0), 0.0)
    return tl.where(index[None, :] == 0, bar[:, None] * first, 0.0), gates_bar


@triton.jit
def coefficients_backward_kernel(
    keep: tl.tensor,
    rate: tl.tensor,
    momentum: tl.tensor,
    kept_bar: tl.tensor,  # [rows, time], by what is read
    carried_bar: tl.tensor,
    written_bar: tl.tensor,  # [rows, chunks, CHUNK, CHUNK], turned: the later token comes last
    end_kept_bar: tl.tensor,  # [rows, chunks], by where the memory goes
    end_carried_bar: tl.tensor,
    end_written_bar: tl.tensor,  # [rows, time]
    end_velocity_kept_bar: tl.tensor,  # [rows, chunks]
    end_velocity_written_bar: tl.tensor,  # [rows, time]
    keep_bar: tl.tensor,  # [rows, time]
    rate_bar: tl.tensor,
    momentum_bar: tl.tensor,
    CHUNK: tl.constexpr,
    MOMENTUM: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program is one chunk. What stands above a diagonal is never used."""
    chunk = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, CHUNK)
    token = chunk * CHUNK + index
    end = index == CHUNK - 1
    rates, gates = tl.load(rate + token), tl.load(keep + token)
    keeps = exponents(gates)
    keeps_before = keeps - tl.log2(tl.maximum(gates, LEAST))
    shares_bar = tl.trans(tl.load(written_bar + chunk * CHUNK * CHUNK + place(CHUNK, CHUNK, CHUNK)).to(tl.float32))
    shares_bar += tl.where(end[:, None], tl.load(end_written_bar + token)[None, :], 0.0)
    from_start_bar = tl.load(kept_bar + token) + tl.where(end, tl.load(end_kept_bar + chunk), 0.0)
    between_bar, keeps_bar = through_start(from_start_bar, keeps, gates, CHUNK)
    if MOMENTUM:
        gates = tl.load(momentum + token)
        moments = exponents(gates)
        moments_before = moments - tl.log2(tl.maximum(gates, LEAST))
        turning = products(moments, moments, 0, CHUNK, 0)
        carried_bars = tl.load(carried_bar + token) + tl.where(end, tl.load(end_carried_bar + chunk), 0.0)
        between_bar = carried_bars[:, None] * tl.exp2(moments)[None, :] + between_bar
        between_bar += product(shares_bar, tl.trans(turning * rates[None, :]), PRECISION)
        velocity_bar = product(products(keeps, keeps, 0, CHUNK, 1), shares_bar, PRECISION)
        velocity_bar += tl.where(end[:, None], tl.load(end_velocity_written_bar + token)[None, :], 0.0)
        tl.store(rate_bar + token, tl.sum(velocity_bar * turning, axis=0))
        from_start_bar = tl.sum(products(keeps, keeps, 0, CHUNK, 0) * carried_bars[:, None], axis=0)
        from_start_bar += tl.where(end, tl.load(end_velocity_kept_bar + chunk), 0.0)
        turning_bar, moments_bar = through_start(from_start_bar, moments, gates, CHUNK)
        turning_bar += velocity_bar * rates[None, :]
        moments_bar += through_products(turning_bar, moments, moments_before, CHUNK, PRECISION)
        tl.store(momentum_bar + token, moments_bar)
    else:
        tl.store(rate_bar + token, tl.sum(shares_bar * products(keeps, keeps, 0, CHUNK, 0), axis=0))
        between_bar += shares_bar * rates[None, :]
    keeps_bar += through_products(between_bar, keeps, keeps_before, CHUNK, PRECISION)
    tl.store(keep_bar + token, keeps_bar)
