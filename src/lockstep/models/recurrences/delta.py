"""The delta rule, gated or not: before a value is written, what the memory already says to its key is taken away.

    S_t = keep_t (I - rate_t k_t k_tᵀ) S_(t-1) + rate_t k_t v_tᵀ        read_t = S_tᵀ q_t

The error, v_t - keep_t S_(t-1)ᵀ k_t, is measured on the memory after it has been decayed. The grid of `lockstep.memory`
measures it before, as Titans does, so that the two agree only where everything is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.kernels import fla
from lockstep.kernels.recurrences import delta as kernels
from lockstep.kernels.recurrences import token
from lockstep.memory.coefficients import products
from lockstep.memory.ownership import owned
from lockstep.memory.types import arithmetic, exactly
from lockstep.models.cost import Cost
from lockstep.models.recurrences.decayed import division

TOGETHER = 32
"""Chunks, of all heads of all samples, that a CPU works on at once: few enough to stay in its cache."""


class Tokens(NamedTuple):
    """Of some chunks, [batch, heads, chunks, size, width]; the gates have no width."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    rate: Tensor
    keep: Tensor | None

    def spans(self, chunks: int) -> Iterator[Tokens]:
        """So many chunks at a time."""
        parts = [() if x is None else x.split(chunks, dim=2) for x in self]
        return (Tokens(*span) for span in zip_longest(*parts))


def delta_rule(
    queries: Tensor, keys: Tensor, values: Tensor, rate: Tensor, log_keep: Tensor | None, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Reads [batch, heads, time, value_dim] and the state after the last token, in at least float32.

    queries, keys [batch, heads, time, key_dim], values [batch, heads, time, value_dim], rate, log_keep
    [batch, heads, time], state [batch, heads, key_dim, value_dim]; without log_keep nothing is forgotten. At most
    `chunk` tokens are worked on as one, and no result depends on it.
    """
    if token.takes(keys, state):
        return token.run(queries, keys, values, log_keep, rate, owned(state))
    if kernels.takes(keys, values):
        return kernels.run(queries, keys, values, rate, log_keep, state)
    operation: fla.Operation = "delta-rule" if log_keep is None else "gated-delta-rule"
    if fla.takes(operation, queries, keys, values):
        gates = {"beta": rate} if log_keep is None else {"beta": rate, "g": log_keep}
        return fla.run(operation, state, queries, k=keys, v=values, **gates)
    exact = arithmetic(state.dtype)
    queries, keys, values, rate, state = (x.to(exact) for x in (queries, keys, values, rate, state))
    keep = None if log_keep is None else log_keep.to(exact).exp()
    with exactly(state.device):
        if keys.shape[2] == 1:
            return one_token(queries, keys, values, rate, keep, state)
        return in_chunks(queries, keys, values, rate, keep, state, chunk)


def one_token(
    query: Tensor, key: Tensor, value: Tensor, rate: Tensor, keep: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The definition, for a token that comes alone."""
    if keep is not None:
        state = keep[..., None] * state
    error = value - key @ state
    state = state + key.mT @ (rate[..., None] * error)
    return query @ state, state


def in_chunks(
    queries: Tensor, keys: Tensor, values: Tensor, rate: Tensor, keep: Tensor | None, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """The same for many tokens: brought into chunks, read a span of chunks at a time, and brought back."""
    batch, heads, time = rate.shape
    count, size = division(time, chunk)

    def tiles(x: Tensor, filling: float = 0.0) -> Tensor:
        """Tokens that fill up the last chunk neither write nor forget."""
        end = (0, 0) * (x.ndim - 3) + (0, count * size - time)
        apart: Tensor = F.pad(x, end, value=filling).unflatten(2, (count, size))
        return apart

    kept = None if keep is None else tiles(keep, 1.0)
    tokens = Tokens(tiles(queries), tiles(keys), tiles(values), tiles(rate), kept)
    reads, after = [], state.flatten(0, 1)
    for span in tokens.spans(max(TOGETHER // (batch * heads), 1) if rate.device.type == "cpu" else count):
        read, after = in_span(span, after)
        reads.append(read)
    return torch.cat(reads, dim=1)[:, :time].unflatten(0, (batch, heads)), after.unflatten(0, (batch, heads))


def in_span(tokens: Tokens, state: Tensor) -> tuple[Tensor, Tensor]:
    """Reads [batch × heads, time, value_dim], and the state [batch × heads, key_dim, value_dim] after them.

    In a chunk that starts from S, with D_ti kept from token i to t and b_t from the start to t, the errors e solve

        e_t + Σ_(i<t) rate_i D_ti (k_t·k_i) e_i = v_t - b_t Sᵀ k_t

    The solution is linear in S: all systems are solved at once, and only what depends on S goes chunk after chunk.
    """
    queries, keys, values, rate = (x.flatten(0, 1).contiguous() for x in tokens[:4])
    if tokens.keep is None:
        between, whole = keys.new_ones(keys.shape[2], keys.shape[2]).tril(), None
        arriving, asking = queries, keys
    else:
        keep = tokens.keep.flatten(0, 1)
        between = products(keep)
        since_start = between[..., :1] * keep[..., :1, None]
        arriving, asking, whole = since_start * queries, since_start * keys, since_start[:, :, -1:]
    weights = between * rate[..., None, :]
    leaving = weights[..., -1, :, None] * keys
    solved = solved_below(weights * (keys @ keys.mT), torch.cat((values, asking), dim=-1))
    known, asked = solved.split((values.shape[-1], keys.shape[-1]), dim=-1)
    starts, errors, state = chained(known, asked, leaving.mT, whole, state)
    reads = arriving @ starts + (weights * (queries @ keys.mT)) @ errors
    return reads.flatten(1, 2), state


def solved_below(matrix: Tensor, right: Tensor) -> Tensor:
    """(I + strict_tril(matrix))⁻¹ right; nothing of the matrix but what lies below its diagonal is looked at."""
    # Transposed, and solved from the right: matrices stored by rows then need no copies, at less than half the time.
    solution: Tensor = torch.linalg.solve_triangular(matrix.mT, right.mT, upper=True, left=False, unitriangular=True)
    return solution.mT


def chained(
    known: Tensor, asked: Tensor, leaving: Tensor, whole: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Where the chunks start [rows, chunks, key_dim, value_dim], their errors [rows, chunks, size, value_dim], the end.

    A chunk that starts from S has the errors known - asked S. Of S it leaves as much as `whole` says, all without it,
    and adds its errors along what is `leaving`.
    """
    starts, errors = [], []
    kept = [None] * known.shape[1] if whole is None else whole.unbind(1)
    for value, key, change, keep in zip(known.unbind(1), asked.unbind(1), leaving.unbind(1), kept, strict=True):
        starts.append(state)
        errors.append(torch.baddbmm(value, key, state, alpha=-1))
        state = torch.baddbmm(state if keep is None else keep * state, change, errors[-1])
    return torch.stack(starts, dim=1), torch.stack(errors, dim=1), state


def delta_rule_cost(heads: int, key_dim: int, value_dim: int, length: int, chunk: int, *, decay: bool) -> Cost:
    """Per token, from an empty start over `length` tokens; triangular solves are no products, and not counted."""
    state = 2.0 * key_dim * value_dim
    alone = 3 * heads * state
    if length == 1:
        # An empty state has no derivative, unless it is decayed.
        return Cost(forward_flops=alone, training_extra=0.0 if decay else -heads * state)
    count, size = division(length, chunk)
    pairs = 2.0 * size**2
    chunks = heads * count / length
    forward = chunks * (pairs * (2 * key_dim + value_dim) + 3 * size * state)
    # On the way back the solve's own matrix takes a product, and so do gates that forget.
    extra = chunks * pairs * (key_dim + value_dim + size * decay)
    # Nothing flows back from the last state, nor into the first.
    spared = (3 if count > 1 else 4) * size * state * heads / length
    return Cost(forward_flops=forward, training_extra=extra - spared, decoding_extra=alone - forward)
