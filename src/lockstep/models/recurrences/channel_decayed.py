"""The recurrence of gated linear attention (Yang et al., arXiv 2312.06635): channels of keys forget on their own.

    S_t = diag(keep_t) S_(t-1) + k_t v_tᵀ        read_t = S_tᵀ q_t

Tokens are taken in chunks, whose starts alone are found one after another. In a chunk, token t reads of the value of an
earlier token s the share Σ_i q_t[i] k_s[i] Π_(s<j≤t) keep_j[i]. Where s lies in the first half of a span of tokens
and t in the second, the product is cut at the middle: one factor goes to the queries, one to the keys, neither is ever
more than one, and the shares are a matrix product. Spans are halved until they are single tokens. So nothing overflows,
and what underflows is smaller than any number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.kernels import fla
from lockstep.kernels.recurrences import channel as kernels
from lockstep.kernels.recurrences import token
from lockstep.memory.derivatives import only_first
from lockstep.memory.ownership import owned
from lockstep.memory.types import arithmetic, exactly


def channel_decayed(
    queries: Tensor, keys: Tensor, values: Tensor, log_keep: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Reads [batch, heads, time, value_dim] and the state after the last token, both in at least float32.

    queries, keys, log_keep [batch, heads, time, key_dim], values [batch, heads, time, value_dim], state [batch, heads,
    key_dim, value_dim]. At most `chunk` tokens are worked on as one; no result depends on it.
    """
    if token.takes(keys, state):
        return token.run(queries, keys, values, log_keep, None, owned(state))
    if kernels.takes(keys, values):
        return kernels.run(queries, keys, values, log_keep, state)
    if fla.takes("channel-decayed", queries, keys, values):
        return fla.run("channel-decayed", state, queries, k=keys, v=values, g=log_keep)
    exact = arithmetic(state.dtype)
    queries, keys, values, log_keep, state = (x.to(exact) for x in (queries, keys, values, log_keep, state))
    with exactly(state.device):
        if keys.shape[2] == 1:
            return one_token(queries, keys, values, log_keep, state)
        return in_chunks(queries, keys, values, log_keep, state, chunk)


def channel_decayed_flops(length: int, chunk: int, key_dim: int, value_dim: int) -> float:
    """FLOPs per token of one head's products over a sequence of this length; those of one token where it is 1."""
    if length == 1:
        return 2.0 * key_dim * value_dim
    count, size = division(length, chunk)
    scores_and_reads = (size - 1) * key_dim + 2 * size * value_dim
    return (scores_and_reads + 4.0 * key_dim * value_dim) * count * size / length


def division(time: int, chunk: int) -> tuple[int, int]:
    """How many chunks, and of how many tokens: a power of two, because they are halved."""
    size = 1 << (min(chunk, time) - 1).bit_length()
    size = size if size <= chunk else size // 2
    return -(-time // size), size


def one_token(queries: Tensor, keys: Tensor, values: Tensor, log_keep: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, for a token that comes alone."""
    state = torch.addcmul(keys.mT * values, log_keep.exp().mT, state)
    return queries @ state, state


def in_chunks(
    queries: Tensor, keys: Tensor, values: Tensor, log_keep: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """The same for many tokens; those that fill up the last chunk write nothing and forget nothing."""
    batch, heads, time = keys.shape[:3]
    count, size = division(time, chunk)

    def cut(x: Tensor) -> Tensor:
        """[batch, heads, time, dim] to [batch × heads, count, size, dim]."""
        filled = F.pad(x, (0, 0, 0, count * size - time)) if count * size > time else x
        return filled.reshape(batch * heads, count, size, -1)

    tokens = (cut(x) for x in (queries, keys, values, log_keep))
    reads, state = _Chunks.apply(*tokens, state.flatten(0, 1))  # type: ignore[no-untyped-call] # torch leaves apply untyped
    return reads.flatten(1, 2)[:, :time].unflatten(0, (batch, heads)), state.unflatten(0, (batch, heads))


class _Chunks(torch.autograd.Function):
    """Reads and the state after the last token; the derivative is written out so that no decays need be kept for it.

    queries, keys, log_keep [rows, chunks, size, key_dim], values, reads [rows, chunks, size, value_dim],
    state [rows, key_dim, value_dim].
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, log_keep: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        since, until, levels = kept(log_keep)
        scores = joint(queries, keys, levels)
        states = carried((keys * until).mT @ values, since[:, :, -1], state)
        reads = (scores @ values).add_((queries * since) @ states[:, :-1])
        ctx.save_for_backward(queries, keys, values, log_keep, scores, states)
        # Cloned, because a view would keep the states of all chunks alive.
        return reads, states[:, -1].clone()

    @staticmethod
    @only_first
    def backward(ctx: Any, reads_bar: Tensor, after_bar: Tensor) -> tuple[Tensor, ...]:
        queries, keys, values, log_keep, scores, states = ctx.saved_tensors
        since, until, levels = kept(log_keep)
        with exactly(reads_bar.device):
            states_bar = carried((queries * since).mT @ reads_bar, since[:, :, -1], after_bar, backwards=True)
            starts, ends_bar = states[:, :-1], states_bar[:, 1:]
            values_bar = (scores.mT @ reads_bar).add_((keys * until) @ ends_bar)
            queries_bar, keys_bar = (reads_bar @ starts.mT).mul_(since), (values @ ends_bar.mT).mul_(until)
            bars = Bars(queries_bar, keys_bar, queries_bar * queries, keys_bar * keys)
            bars.since[:, :, -1] += (ends_bar * starts).sum(dim=-1) * since[:, :, -1]
            differentiate(reads_bar @ values.mT, queries, keys, levels, bars)
        return queries_bar, keys_bar, values_bar, bars.since, states_bar[:, 0]


class Level(NamedTuple):
    """What is kept across the middle of each span, [rows, chunks, spans, half, key_dim]."""

    since: Tensor
    """From the middle to each token of the second half."""
    until: Tensor
    """From each token of the first half to the middle."""


class Bars(NamedTuple):
    """Derivatives, [rows, chunks, size, key_dim] each, which grow from level to level."""

    queries: Tensor
    keys: Tensor
    since: Tensor
    """With respect to the logarithm of what is kept from the start of a span to each token."""
    until: Tensor
    """With respect to the logarithm of what is kept from each token to the end of its span."""


def kept(log_keep: Tensor) -> tuple[Tensor, Tensor, list[Level]]:
    """From the start of a chunk to each token, from each token to the end, and across the middles of ever longer spans.

    Two spans make one of twice the length: what the whole keeps is the product of what its halves keep.
    """
    since, until, levels = log_keep.exp(), torch.ones_like(log_keep), list[Level]()
    for half in widths(log_keep):
        (first_since, second_since), (first_until, _) = halves(since, half), halves(until, half)
        levels.append(Level(second_since.clone(), first_until.clone()))
        first_until.mul_(second_since[..., -1:, :])
        second_since.mul_(first_since[..., -1:, :])
    return since, until, levels


def joint(queries: Tensor, keys: Tensor, levels: list[Level]) -> Tensor:
    """How much each token reads of each value, [rows, chunks, size, size]; of later ones, nothing."""
    scores = (queries * keys).sum(dim=-1).diag_embed()
    for half, level in zip(widths(keys), levels, strict=True):
        reading, written = halves(queries, half)[1] * level.since, halves(keys, half)[0] * level.until
        across(scores, half).copy_(reading @ written.mT)
    return scores


def differentiate(scores_bar: Tensor, queries: Tensor, keys: Tensor, levels: list[Level], bars: Bars) -> None:
    """Add what the scores make of it; in the end the spans are single tokens, and `bars.since` is that of log_keep."""
    own = scores_bar.diagonal(dim1=-2, dim2=-1)[..., None]
    bars.queries.addcmul_(own, keys)
    bars.keys.addcmul_(own, queries)
    for half, level in zip(reversed([*widths(keys)]), reversed(levels), strict=True):
        (first_since, second_since), (first_until, _) = halves(bars.since, half), halves(bars.until, half)
        first_since[..., -1, :] += second_since.sum(dim=-2)
        second_since[..., -1, :] += first_until.sum(dim=-2)
        query, key, here = halves(queries, half)[1], halves(keys, half)[0], across(scores_bar, half).contiguous()
        query_bar = (here @ (key * level.until)).mul_(level.since)
        key_bar = (here.mT @ (query * level.since)).mul_(level.until)
        halves(bars.queries, half)[1].add_(query_bar)
        halves(bars.keys, half)[0].add_(key_bar)
        second_since.addcmul_(query_bar, query)
        first_until.addcmul_(key_bar, key)


def widths(x: Tensor) -> Iterator[int]:
    """1, 2, 4 and so on, below the size of a chunk."""
    half = 1
    while half < x.shape[2]:
        yield half
        half *= 2


def halves(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """The first and the second half of each span of a chunk, [rows, chunks, spans, half, dim]; views."""
    first, second = x.unflatten(2, (-1, 2, half)).unbind(3)
    return first, second


def across(scores: Tensor, half: int) -> Tensor:
    """Of scores [rows, chunks, size, size], those of second halves with first: [rows, chunks, spans, half, half]."""
    spans = scores.unflatten(3, (-1, 2, half)).unflatten(2, (-1, 2, half))
    alike: Tensor = spans.diagonal(dim1=2, dim2=5)
    return alike[:, :, 1, :, 0].movedim(-1, 2)


def carried(added: Tensor, whole: Tensor, first: Tensor, *, backwards: bool = False) -> Tensor:
    """The states between chunks, [rows, chunks + 1, key_dim, value_dim].

    Each chunk keeps a share of the state it meets and adds its own; backwards, `first` is what the last chunk meets.
    """
    count = added.shape[1]
    states = added.new_empty(added.shape[0], count + 1, *added.shape[2:])
    states[:, -1 if backwards else 0] = first
    for chunk in reversed(range(count)) if backwards else range(count):
        met, left = (chunk + 1, chunk) if backwards else (chunk, chunk + 1)
        torch.addcmul(added[:, chunk], whole[:, chunk, :, None], states[:, met], out=states[:, left])
    return states
