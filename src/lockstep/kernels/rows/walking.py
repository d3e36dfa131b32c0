"""A short causal convolution, SiLU and unit length, from projections to rows, and the adjoints of that.

A program has one head of one sample, and walkers in it that go through consecutive tokens of their own, side by side:
a tile is one token of each. What a convolution needs of other tokens a walker still has in registers, so that every
token is loaded once, but for the few around a walk. On the way back those after it are gone through too: the adjoint
of a token is a sum over the outputs that it had a part in. Nothing is kept between the two ways.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.activations import activate, activated_and_slope


@triton.jit
def extended(tiles: tl.tuple, tile: tl.tensor) -> tl.tuple:
    """By one at the end."""
    return tiles + (tile,)  # noqa: RUF005 # Triton unpacks nothing


@triton.jit
def spots(at: tl.tensor, stride: int, WIDTH: tl.constexpr) -> tl.tensor:
    """Offsets [WALKERS, WIDTH] of tokens that lie `stride` apart."""
    return at.to(tl.int64)[:, None] * stride + tl.arange(0, WIDTH)[None, :]


@triton.jit
def token(tokens: tl.tensor, at: tl.tensor, time: int, stride: int, WIDTH: tl.constexpr) -> tl.tensor:
    """One of each walker, [WALKERS, WIDTH]; zeros where there is none."""
    there = (at >= 0) & (at < time)
    return tl.load(tokens + spots(at, stride, WIDTH), mask=there[:, None], other=0.0)


@triton.jit
def put(tokens: tl.tensor, at: tl.tensor, stride: int, x: tl.tensor, there: tl.tensor) -> None:
    """The same way back, rounded to what is there."""
    tl.store(tokens + spots(at, stride, x.shape[1]), x.to(tokens.dtype.element_ty), mask=there[:, None])


@triton.jit
def next_tokens(
    tokens: tl.tensor, at: tl.tensor, time: int, stride: int, WIDTH: tl.constexpr, COUNT: tl.constexpr
) -> tl.tuple:
    """The same for so many tokens from here on, all under way at once."""
    found = ()
    for i in tl.static_range(COUNT):
        found = extended(found, token(tokens, at + i, time, stride, WIDTH))
    return found


@triton.jit
def tokens_before(
    tokens: tl.tensor,
    tail: tl.tensor,
    start: tl.tensor,  # [WALKERS]
    time: int,
    stride: int,
    tail_stride: int,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
) -> tl.tuple:
    """The last TAPS - 1 before a walk, of which those before the text are in the tail."""
    before = ()
    for tap in tl.static_range(TAPS - 1):
        at = start - (TAPS - 1) + tap
        carried = tl.load(tail + spots(at + TAPS - 1, tail_stride, WIDTH), mask=(at < 0)[:, None], other=0.0)
        x = token(tokens, at, time, stride, WIDTH)
        before = extended(before, tl.where((at < 0)[:, None], carried.to(x.dtype), x))
    return before


@triton.jit
def taps_of(weight: tl.tensor, stride: int, WIDTH: tl.constexpr, TAPS: tl.constexpr) -> tl.tuple:
    """Weights of a head, each [1, WIDTH], in 32 bits."""
    taps = ()
    for tap in tl.static_range(TAPS):
        taps = extended(taps, tl.load(weight + tap * stride + tl.arange(0, WIDTH)[None, :]).to(tl.float32))
    return taps


@triton.jit
def offset_of(bias: tl.tensor, column: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """The bias of a head, [1, WIDTH], in 32 bits."""
    if bias is None:
        offset = tl.zeros([1, WIDTH], tl.float32)
    else:
        offset = tl.load(bias + column + tl.arange(0, WIDTH)[None, :]).to(tl.float32)
    return offset


@triton.jit
def convolved(before: tl.tuple, x: tl.tensor, taps: tl.tuple, offset: tl.tensor, TAPS: tl.constexpr) -> tl.tensor:
    """In 32 bits, [WALKERS, WIDTH]."""
    z = offset + x.to(tl.float32) * taps[TAPS - 1]
    for tap in tl.static_range(TAPS - 1):
        z += before[tap].to(tl.float32) * taps[tap]
    return z


@triton.jit
def gathered(bars: tl.tuple, z_bar: tl.tensor, taps: tl.tuple, TAPS: tl.constexpr) -> tl.tensor:
    """The adjoint of the token TAPS - 1 ago, from those of the outputs since: the weights the other way round."""
    x_bar = z_bar * taps[0]
    for since in tl.static_range(TAPS - 1):
        x_bar += bars[since] * taps[TAPS - 1 - since]
    return x_bar


@triton.jit
def scale_of(s: tl.tensor, EPSILON: tl.constexpr) -> tl.tensor:
    """What makes these vectors unit ones, [WALKERS, 1]."""
    return tl.rsqrt(tl.sum(s * s, axis=1, keep_dims=True) + EPSILON)


@triton.jit
def through_output(z: tl.tensor, bar: tl.tensor, LENGTH: tl.constexpr, EPSILON: tl.constexpr) -> tl.tensor:
    """The adjoint of what a convolution said, from that of the row."""
    s, slope = activated_and_slope(z, "silu")
    bar = bar.to(tl.float32)
    if LENGTH != 0:
        scale = scale_of(s, EPSILON)
        y = s * scale
        bar = (bar - y * tl.sum(bar * y, axis=1, keep_dims=True)) * (scale * LENGTH)
    return bar * slope


@triton.jit
def with_share(sums: tl.tuple, z_bar: tl.tensor, before: tl.tuple, x: tl.tensor, TAPS: tl.constexpr) -> tl.tuple:
    """Sums of the adjoints of weights and bias, [WALKERS, WIDTH] each, with those by one more output of each walker."""
    more = ()
    for tap in tl.static_range(TAPS - 1):
        more = extended(more, sums[tap] + z_bar * before[tap].to(tl.float32))
    more = extended(more, sums[TAPS - 1] + z_bar * x.to(tl.float32))
    return extended(more, sums[TAPS] + z_bar)


@triton.jit
def zeros(COUNT: tl.constexpr, WALKERS: tl.constexpr, WIDTH: tl.constexpr) -> tl.tuple:
    """So many tiles of them, in 32 bits."""
    tiles = ()
    for _ in tl.static_range(COUNT):
        tiles = extended(tiles, tl.zeros([WALKERS, WIDTH], tl.float32))
    return tiles


@triton.jit
def rows_kernel(
    projected: tl.tensor,  # [batch, time, channels], tokens `stride` apart
    weight: tl.tensor,  # [TAPS, channels]
    tail: tl.tensor,  # [batch, TAPS - 1, channels]
    bias: tl.tensor,  # [channels]
    rows: tl.tensor,  # [WIDTH] numbers of each token of each head of each sample, so far apart: what comes out
    first: int,
    heads: int,
    channels: int,
    stride: int,
    time: int,
    tiles: int,
    span: int,
    sample_stride: int,
    head_stride: int,
    token_stride: int,
    WALKERS: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    LENGTH: tl.constexpr,
    EPSILON: tl.constexpr,
    STEPS: tl.constexpr,
) -> None:
    """One program is one head of a part, whose channels begin at `first`, and WALKERS × `span` tokens of a sample."""
    head, tile = tl.program_id(0) % heads, tl.program_id(0) // heads
    sample, column = (tile // tiles).to(tl.int64), first + head * WIDTH
    projected += sample * time * stride + column
    tail += sample * (TAPS - 1) * channels + column
    rows += sample * sample_stride + head.to(tl.int64) * head_stride
    start = ((tile % tiles) * WALKERS + tl.arange(0, WALKERS)) * span
    taps = taps_of(weight + column, channels, WIDTH, TAPS)
    offset = offset_of(bias, column, WIDTH)
    before = tokens_before(projected, tail, start, time, stride, channels, WIDTH, TAPS)
    for step in range(0, span, STEPS):
        here = next_tokens(projected, start + step, time, stride, WIDTH, STEPS)
        for i in tl.static_range(STEPS):
            at = start + step + i
            y = activate(convolved(before, here[i], taps, offset, TAPS), "silu")
            if LENGTH != 0:
                y *= scale_of(y, EPSILON) * LENGTH
            put(rows, at, token_stride, y, at < time)
            before = extended(before[1:], here[i])


@triton.jit
def rows_backward_kernel(
    projected: tl.tensor,  # [batch, time, channels], tokens `stride` apart
    weight: tl.tensor,  # [TAPS, channels]
    tail: tl.tensor,  # [batch, TAPS - 1, channels]
    bias: tl.tensor,  # [channels]
    rows_bar: tl.tensor,  # as the rows
    projected_bar: tl.tensor,  # as the projections, in one piece: what comes out
    weight_bar: tl.tensor,  # [batch, tiles, TAPS + 1, channels] in 32 bits: of the weights, then of the bias
    tail_bar: tl.tensor,
    first: int,
    heads: int,
    channels: int,
    stride: int,
    time: int,
    tiles: int,
    span: int,
    sample_stride: int,
    head_stride: int,
    token_stride: int,
    WALKERS: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    LENGTH: tl.constexpr,
    EPSILON: tl.constexpr,
    STEPS: tl.constexpr,
) -> None:
    """The same programs. After each token of a walk, the one TAPS - 1 before it has all of its adjoint."""
    head, tile = tl.program_id(0) % heads, tl.program_id(0) // heads
    sample, column = (tile // tiles).to(tl.int64), first + head * WIDTH
    projected += sample * time * stride + column
    projected_bar += sample * time * channels + column
    tail += sample * (TAPS - 1) * channels + column
    tail_bar += sample * (TAPS - 1) * channels + column
    rows_bar += sample * sample_stride + head.to(tl.int64) * head_stride
    weight_bar += tile.to(tl.int64) * (TAPS + 1) * channels + column
    start = ((tile % tiles) * WALKERS + tl.arange(0, WALKERS)) * span
    taps = taps_of(weight + column, channels, WIDTH, TAPS)
    offset = offset_of(bias, column, WIDTH)
    before = tokens_before(projected, tail, start, time, stride, channels, WIDTH, TAPS)
    bars, sums = zeros(TAPS - 1, WALKERS, WIDTH), zeros(TAPS + 1, WALKERS, WIDTH)
    # As far as to the walk's own first token: what has its adjoint before it is the tail, or of another walk.
    xs = next_tokens(projected, start, time, stride, WIDTH, TAPS - 1)
    ys_bar = next_tokens(rows_bar, start, time, token_stride, WIDTH, TAPS - 1)
    for i in tl.static_range(TAPS - 1):
        z_bar = through_output(convolved(before, xs[i], taps, offset, TAPS), ys_bar[i], LENGTH, EPSILON)
        put(tail_bar, start + i, channels, gathered(bars, z_bar, taps, TAPS), start == 0)
        sums = with_share(sums, tl.where(i < span, z_bar, 0.0), before, xs[i], TAPS)
        before, bars = extended(before[1:], xs[i]), extended(bars[1:], z_bar)
    for step in range(0, span, STEPS):
        at = start + step
        here = next_tokens(projected, at + TAPS - 1, time, stride, WIDTH, STEPS)
        here_bar = next_tokens(rows_bar, at + TAPS - 1, time, token_stride, WIDTH, STEPS)
        for i in tl.static_range(STEPS):
            z_bar = through_output(convolved(before, here[i], taps, offset, TAPS), here_bar[i], LENGTH, EPSILON)
            put(projected_bar, at + i, channels, gathered(bars, z_bar, taps, TAPS), at + i < time)
            # Of outputs after the walk, the share in the weights' adjoints is counted in the next.
            counted = tl.where(step + i + TAPS - 1 < span, z_bar, 0.0)
            sums = with_share(sums, counted, before, here[i], TAPS)
            before, bars = extended(before[1:], here[i]), extended(bars[1:], z_bar)
    for tap in tl.static_range(TAPS + 1):
        tl.store(weight_bar + tap * channels + tl.arange(0, WIDTH), tl.sum(sums[tap], axis=0))
