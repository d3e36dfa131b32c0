"""The selective scan of Mamba (Gu & Dao, arXiv 2312.00752): every state of every channel decays at a rate of its own.

    h_t[n, c] = exp(-rate_t[c] decay[n, c]) h_(t-1)[n, c] + rate_t[c] value_t[c] key_t[n]
    read_t[c] = Σ_n query_t[n] h_t[n, c]

No two states share what they keep, so that no matrix product makes them; what costs is to pass over them all. Time is
cut into tiles whose states fit a processor's cache, and a tile that has room for several chunks into chunks that
advance together, place by place, each as if nothing had been before it, and are joined afterwards. For the derivative
the states of a tile are made again: only those at its start are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.kernels.recurrences import selective as kernels
from lockstep.memory.derivatives import only_first
from lockstep.memory.types import arithmetic, exactly

CACHED = 2**18
"""States of a tile on a processor: a megabyte of float32."""
FEWEST = 16
"""Tokens of a tile, however many states each has: only those at its start are kept for the derivative."""
AT_ONCE = 2**26
"""States of a tile elsewhere, where every operation costs the time to launch it."""


class Tokens(NamedTuple):
    """What a scan is over; in a tile, the second dimension is cut into chunks and places."""

    queries: Tensor  # [batch, time, d_state]
    keys: Tensor  # [batch, time, d_state]
    written: Tensor  # [batch, time, channels]: rate × value
    rate: Tensor  # [batch, time, channels]


class Tile(NamedTuple):
    """Where a tile begins, and how it is cut."""

    start: int
    chunks: int
    places: int

    def cut(self, x: Tensor) -> Tensor:
        """[batch, time, ...] to [batch, chunks, places, ...]; a view."""
        end = self.start + self.chunks * self.places
        y: Tensor = x[:, self.start : end].unflatten(1, (self.chunks, self.places))
        return y


def selective_scan(
    queries: Tensor, keys: Tensor, values: Tensor, rate: Tensor, decay: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Reads [batch, time, channels] and the state after the last token, both in at least float32.

    queries, keys [batch, time, d_state], values, rate [batch, time, channels], decay [d_state, channels], state [batch,
    d_state, channels]; rate and decay are not negative. Chunks have at most `chunk` tokens; no result depends on it.
    """
    if kernels.takes(keys, values, state):
        return kernels.run(queries, keys, values, rate, decay, state)
    exact = arithmetic(state.dtype)
    queries, keys, values, rate, decay, state = (x.to(exact) for x in (queries, keys, values, rate, decay, state))
    # Powers of two: a processor's exponential takes up to four times as long.
    tokens, exponents = Tokens(queries, keys, rate * values, rate), -math.log2(math.e) * decay
    with exactly(state.device):
        if values.shape[1] == 1:
            return one_token(tokens, exponents, state)
        reads, state = _Scan.apply(*tokens, exponents, state, chunk)  # type: ignore[no-untyped-call] # torch leaves apply untyped
        return reads, state


def one_token(tokens: Tokens, exponents: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, for a token that comes alone."""
    state = torch.addcmul(tokens.keys.mT * tokens.written, (tokens.rate * exponents).exp2(), state)
    return tokens.queries @ state, state


class Buffer:
    """Numbers for all states of a tile, [batch, chunks, places, d_state, channels]."""

    def __init__(self, state: Tensor, tile: Tile) -> None:
        self.all = state.new_empty(state.shape[0], tile.chunks, tile.places, *state.shape[1:])
        self.chunks, self.places = self.all.unbind(1), self.all.unbind(2)


class Buffers:
    """Used again for every tile of one shape: fresh memory takes longer than what is done with it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.known: dict[tuple[int, int], tuple[Buffer, ...]] = {}

    def of(self, tile: Tile, state: Tensor) -> tuple[Buffer, ...]:
        shape = (tile.chunks, tile.places)
        if shape not in self.known:
            self.known[shape] = tuple(Buffer(state, tile) for _ in range(self.count))
        return self.known[shape]


class _Scan(torch.autograd.Function):
    """Keeps the state at the start of each tile, and none of those inside."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *tensors, exponents, state, chunk = arguments
        tokens, buffers = Tokens(*tensors), Buffers(3)
        reads, starts = torch.empty_like(tokens.written), []
        for tile in tiles(tokens.rate.shape[1], state, chunk):
            starts.append(state)
            here = Tokens(*map(tile.cut, tokens))
            keep, states, spare = buffers.of(tile, state)
            sweep(here, exponents, state, keep, states, spare)
            tile.cut(reads).copy_(rows_times(here.queries, states.all))
            # Cloned, because the buffer is written again.
            state = states.all[:, -1, -1].clone()
        ctx.save_for_backward(*tokens, exponents, *starts)
        ctx.chunk = chunk
        return reads, state

    @staticmethod
    @only_first
    def backward(ctx: Any, reads_bar: Tensor, state_bar: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, written, rate, exponents, *starts = ctx.saved_tensors
        tokens = Tokens(queries, keys, written, rate)
        bars = Tokens(*map(torch.empty_like, tokens))
        exponents_bar, buffers = torch.zeros_like(exponents), Buffers(4)
        every = list(tiles(reads_bar.shape[1], state_bar, ctx.chunk))
        for tile, start in zip(reversed(every), reversed(starts), strict=True):
            here, bars_here = (Tokens(*map(tile.cut, each)) for each in (tokens, bars))
            keep, states, states_bar, spare = buffers.of(tile, start)
            with exactly(exponents.device):
                sweep(here, exponents, start, keep, states, spare)
                sweep_back(here, exponents, tile.cut(reads_bar), state_bar, keep, states_bar, spare)
                bars_here.queries.copy_(rows_times(tile.cut(reads_bar), states.all.mT))
                bars_here.keys.copy_(rows_times(here.written, states_bar.all.mT))
                bars_here.written.copy_(rows_times(here.keys, states_bar.all))
            # At first with respect to the state before each token; times that state, to the logarithm of its keep.
            log_keep_bar = keep.all.mul_(states_bar.all)
            state_bar = log_keep_bar[:, 0, 0].clone()
            log_keep_bar.flatten(1, 2)[:, 1:].mul_(states.all.flatten(1, 2)[:, :-1])
            log_keep_bar[:, 0, 0].mul_(start)
            bars_here.rate.copy_(torch.mul(log_keep_bar, exponents, out=spare.all).sum(dim=-2))
            exponents_bar += torch.mul(log_keep_bar, here.rate[..., None, :], out=spare.all).sum(dim=(0, 1, 2))
        # Exponents are of two, and logarithms are natural.
        bars.rate.mul_(math.log(2))
        return *bars, exponents_bar.mul_(math.log(2)), state_bar, None


def tiles(time: int, state: Tensor, chunk: int) -> Iterator[Tile]:
    """Of as many tokens as have their states computed at once; those at the end are smaller."""
    most = max(FEWEST, (CACHED if state.device.type == "cpu" else AT_ONCE) // state.numel())
    start = 0
    while start < time:
        places = min(chunk, most, time - start)
        chunks = min(most, time - start) // places
        yield Tile(start, chunks, places)
        start += chunks * places


def keeps(rate: Tensor, exponents: Tensor, into: Tensor) -> None:
    """What is left of each state [..., d_state, channels] after a rate, or a sum of rates, [..., channels]."""
    torch.mul(rate[..., None, :], exponents, out=into).exp2_()


def sweep(tokens: Tokens, exponents: Tensor, start: Tensor, keep: Buffer, states: Buffer, spare: Buffer) -> None:
    """Fill in what each token keeps, and all states of a tile."""
    keeps(tokens.rate, exponents, into=keep.all)
    torch.mul(tokens.keys[..., None], tokens.written[..., None, :], out=states.all)
    states.places[0][:, 0].addcmul_(keep.places[0][:, 0], start)
    for share, (before, here) in zip(keep.places[1:], pairwise(states.places), strict=True):
        here.addcmul_(share, before)
    if len(states.chunks) > 1:
        keeps(tokens.rate.cumsum(dim=2), exponents, into=spare.all)
        for share, (before, here) in zip(spare.chunks[1:], pairwise(states.chunks), strict=True):
            here.addcmul_(share, before[:, -1:])


def sweep_back(
    tokens: Tokens, exponents: Tensor, reads_bar: Tensor, state_bar: Tensor, keep: Buffer, bars: Buffer, spare: Buffer
) -> None:
    """Fill in the derivatives with respect to all states: the same recurrence, from the last token to the first."""
    torch.mul(tokens.queries[..., None], reads_bar[..., None, :], out=bars.all)
    bars.places[-1][:, -1] += state_bar
    for share, (after, here) in zip(keep.places[:0:-1], pairwise(bars.places[::-1]), strict=True):
        here.addcmul_(share, after)
    if len(bars.chunks) > 1:
        # From each place to the last of its chunk, and on to the first of the next; nothing follows the last chunk.
        first_of_next = tokens.rate[:, :, :1].roll(-1, dims=1)
        later = torch.cat((tokens.rate[:, :, 1:], first_of_next), dim=2)
        keeps(later.flip(2).cumsum(dim=2).flip(2), exponents, into=spare.all)
        for share, (after, here) in zip(spare.chunks[-2::-1], pairwise(bars.chunks[::-1]), strict=True):
            here.addcmul_(share, after[:, :1])


def rows_times(rows: Tensor, matrices: Tensor) -> Tensor:
    """Each row [batch, chunks, places, ·] times a matrix of its own."""
    y: Tensor = torch.bmm(rows.flatten(0, 2)[:, None], matrices.flatten(0, 2))[:, 0].unflatten(0, rows.shape[:3])
    return y
