"""Linear recurrences that forget by one number per token and head: linear attention, retention, Mamba-2.

    S_t = keep_t S_{t-1} + k_t v_tᵀ        read_t = S_tᵀ q_t

Tokens are taken in chunks. With D_ts kept from token s to token t and b_t from the chunk's start to t, a chunk that
starts from S reads

    (D * Q Kᵀ) V + b.(Q S)

Only the starts are found one after another. Inside, tensors are [batch, groups, chunks, …]: a group is a head of keys,
and the heads of values that share it lie side by side, so that one product serves them all.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.kernels import fla
from lockstep.kernels.recurrences import decayed as kernels
from lockstep.kernels.recurrences import token
from lockstep.memory.derivatives import only_first
from lockstep.memory.ownership import owned
from lockstep.memory.types import arithmetic, exactly


def decayed(
    queries: Tensor, keys: Tensor, values: Tensor, log_keep: Tensor | None, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Reads [batch, heads, time, value_dim] and the state after the last token, in at least float32.

    Reads of our kernels are rounded to 16 bits: whoever computes with them widens them.

    queries, keys [batch, groups, time, key_dim], values [batch, heads, time, value_dim], log_keep
    [batch or 1, heads, time], state [batch, heads, key_dim, value_dim]; each group of keys serves heads / groups
    neighbouring heads of values, and without log_keep nothing is forgotten. At most `chunk` tokens are worked on as
    one; no result depends on it.
    """
    if token.takes(keys, state):
        return token.run(queries, keys, values, log_keep, None, owned(state))
    if kernels.takes(keys, values):
        return kernels.run(queries, keys, values, log_keep, state)
    if fla.takes("decayed", queries, keys, values):
        sharing = values.shape[1] // keys.shape[1]
        queries, keys = (x.repeat_interleave(sharing, dim=1) for x in (queries, keys))
        gates = {} if log_keep is None else {"g": log_keep.expand(values.shape[0], -1, -1)}
        return fla.run("decayed", state, queries, k=keys, v=values, **gates)
    exact = arithmetic(state.dtype)
    queries, keys, values, state = (x.to(exact) for x in (queries, keys, values, state))
    log_keep = None if log_keep is None else log_keep.to(exact)
    with exactly(state.device):
        if keys.shape[2] == 1:
            return one_token(queries, keys, values, log_keep, state)
        return in_chunks(queries, keys, values, log_keep, state, chunk)


def decayed_flops(length: int, chunk: int, groups: int, heads: int, key_dim: int, value_dim: int) -> float:
    """Of the products, per token of a sequence of this length; a token that comes alone has no scores."""
    states = 4.0 * heads * key_dim * value_dim
    if length == 1:
        return states
    count, size = division(length, chunk)
    scores = 2.0 * size * (groups * key_dim + heads * value_dim)
    return (states + scores) * count * size / length


def division(time: int, chunk: int) -> tuple[int, int]:
    """How many chunks, and of how many tokens: all alike, so that hardly any need be filled up."""
    count = -(-time // chunk)
    return count, -(-time // count)


def one_token(
    queries: Tensor, keys: Tensor, values: Tensor, log_keep: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The definition, for a token that comes alone."""
    sharing = values.shape[1] // keys.shape[1]
    queries, keys = (x.repeat_interleave(sharing, dim=1) if sharing > 1 else x for x in (queries, keys))
    written = keys.mT @ values
    state = state + written if log_keep is None else torch.addcmul(written, state, log_keep.exp()[..., None])
    return queries @ state, state


def in_chunks(
    queries: Tensor, keys: Tensor, values: Tensor, log_keep: Tensor | None, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """The same for many tokens: brought into chunks, read, and brought back."""
    (heads, time), groups = values.shape[1:3], keys.shape[1]
    count, size = division(time, chunk)

    def tiles(x: Tensor, parts: int) -> Tensor:
        """[batch, heads, time, dim] → [batch, groups, chunks, size, parts, dim], filled up with zeros."""
        filled = F.pad(x, (0, 0, 0, count * size - time)) if count * size > time else x
        apart: Tensor = filled.unflatten(2, (count, size)).unflatten(1, (-1, parts))
        return apart.permute(0, 1, 3, 4, 2, 5).contiguous()

    sharing = heads // groups
    if log_keep is None:
        log_keep = values.new_zeros(1, 1, count, size, 1)
    else:
        # Below this nothing is kept that a number could hold, and larger sums would cost the others their digits.
        log_keep = tiles(log_keep.clamp(min=math.log(torch.finfo(log_keep.dtype).tiny))[..., None], sharing).squeeze(-1)
    reads, after = _Chunks.apply(  # type: ignore[no-untyped-call] # torch leaves apply untyped
        tiles(queries, 1).squeeze(4),
        tiles(keys, 1).squeeze(4),
        tiles(values, sharing),
        log_keep,
        state.unflatten(1, (groups, sharing)).transpose(2, 3),
    )
    reads = reads.permute(0, 1, 4, 2, 3, 5).flatten(3, 4).flatten(1, 2)[:, :, :time]
    return reads, after.transpose(2, 3).flatten(1, 2)


class Kept(NamedTuple):
    """What the gates of whole chunks leave of what was written; dimensions of one where all are alike."""

    within: Tensor
    """D, from each token to each later one, [batch, groups, chunks, heads, size, size]; zero above the diagonal."""
    since: Tensor
    """b, from the start to each token, [batch, groups, chunks, size, heads, 1]."""
    until: Tensor
    """From each token to the end, likewise."""
    whole: Tensor
    """From the start to the end, [batch, groups, chunks, 1, heads, 1]."""


def kept(log_keep: Tensor) -> Kept:
    """From log_keep [batch, groups, chunks, size, heads]."""
    total = log_keep.cumsum(dim=3)
    rows = total.transpose(3, 4)
    future = torch.full(rows.shape[-1:] * 2, -torch.inf, dtype=rows.dtype, device=rows.device).triu(1)
    within = (rows[..., :, None] - rows[..., None, :]).add_(future).exp_()
    end = total[..., -1:, :]
    return Kept(within, total.exp()[..., None], (end - total).exp()[..., None], end.exp()[..., None])


class _Chunks(torch.autograd.Function):
    """Reads and the state after the last token; the derivative is written out so that no decays need be kept for it.

    queries, keys [batch, groups, chunks, size, key_dim], values, reads [batch, groups, chunks, size, heads, value_dim],
    log_keep [batch, groups, chunks, size, heads], states [batch, groups, key_dim, heads, value_dim].
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, log_keep: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        within, since, until, whole = kept(log_keep)
        scores = queries @ keys.mT
        near = (scores[:, :, :, None] * within) @ values.transpose(3, 4)
        states = carried(side_by_side(keys.mT, values * until), whole, state)
        reads = side_by_side(queries, states[:, :, :-1]).mul_(since).add_(near.transpose(3, 4))
        ctx.save_for_backward(queries, keys, values, log_keep, scores, states, reads)
        # Cloned, because a view would keep the states of all chunks alive.
        return reads, states[:, :, -1].clone()

    @staticmethod
    @only_first
    def backward(ctx: Any, reads_bar: Tensor, after_bar: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, log_keep, scores, states, reads = ctx.saved_tensors
        within, since, until, whole = kept(log_keep)
        reads_bar = reads_bar.contiguous()
        heads_bar, starts = reads_bar.transpose(3, 4), states[:, :, :-1]
        with exactly(reads_bar.device):
            arriving, leaving = reads_bar * since, values * until
            states_bar = carried(side_by_side(queries.mT, arriving), whole, after_bar, backwards=True)
            ends_bar = states_bar[:, :, 1:]
            scores_bar = (heads_bar @ values.transpose(3, 4).mT).mul_(within).sum(dim=3)
            queries_bar = scores_bar @ keys + arriving.flatten(4) @ starts.flatten(4).mT
            keys_bar = scores_bar.mT @ queries + leaving.flatten(4) @ ends_bar.flatten(4).mT
            near_bar = (scores[:, :, :, None] * within).mT @ heads_bar
            values_bar = side_by_side(keys, ends_bar).mul_(until).add_(near_bar.transpose(3, 4))
        log_keep_bar = None
        if ctx.needs_input_grad[3]:
            # Each read holds a factor exp(total_t), what is left of each value exp(-total_s), and the state after a
            # chunk exp(total_end): their products with their derivatives are the derivatives of the totals.
            total_bar = (reads * reads_bar).sub_(values * values_bar).sum(dim=-1)
            total_bar[:, :, :, -1] += (states[:, :, 1:] * ends_bar).sum(dim=(3, 5))
            log_keep_bar = total_bar.flip(3).cumsum(dim=3).flip(3).sum_to_size(log_keep.shape)
        return queries_bar, keys_bar, values_bar, log_keep_bar, states_bar[:, :, 0]


def side_by_side(left: Tensor, right: Tensor) -> Tensor:
    """left [..., rows, inner] @ right [..., inner, heads, value_dim], all heads in one product."""
    product: Tensor = (left @ right.flatten(4)).unflatten(-1, right.shape[4:])
    return product


def carried(added: Tensor, whole: Tensor, first: Tensor, *, backwards: bool = False) -> Tensor:
    """The states between chunks, [batch, groups, chunks + 1, key_dim, heads, value_dim].

    Each chunk keeps a share of the state it meets and adds its own; backwards, `first` is what the last chunk meets.
    """
    count = added.shape[2]
    states = added.new_empty(*added.shape[:2], count + 1, *added.shape[3:])
    states[:, :, -1 if backwards else 0] = first
    for chunk in reversed(range(count)) if backwards else range(count):
        met, left = (chunk + 1, chunk) if backwards else (chunk, chunk + 1)
        torch.addcmul(added[:, :, chunk], states[:, :, met], whole[:, :, chunk], out=states[:, :, left])
    return states
