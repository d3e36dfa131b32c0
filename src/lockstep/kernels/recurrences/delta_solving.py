"""How tokens of a chunk depend on each other: on nothing but queries, keys and gates, and so for all chunks at once.

With D_ti kept from token i to t and b_t from the start, a chunk that starts from S has the errors, weighted by rates,

    u + A u = rate (v - b k S)        A_ti = rate_t D_ti k_t·k_i below the diagonal

which is what it writes. The right side, a token's offer r, is what it would write if no other of its chunk did. With
X = (I + A)⁻¹ all is linear in offers: X r is written, P r = (D * q kᵀ) X r is read, and Zᵀ r = (until k)ᵀ X r is left
at the chunk's end. Where keys are alike much of that cancels. It does so here, in 32 bits, and only P, Z and X are
rounded: products with offers and states then lose nothing that their results would miss.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import added, product
from lockstep.kernels.recurrences.reads import kept_within


@triton.jit
def in_parts(a: tl.tensor, LOW: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Two tiles of few digits that add up to one of many."""
    high = a.to(LOW)
    return high, (a - high.to(tl.float32)).to(LOW)


@triton.jit
def precise(a: tl.tensor, b: tl.tensor, LOW: tl.constexpr, PRECISION: tl.constexpr) -> tl.tensor:
    """a b of tiles in 32 bits. Parts of 16 keep more digits than one pass of the matrix units over 32 bits would."""
    if tl.float32 == LOW:
        return product(a, b, PRECISION)
    a_high, a_rest = in_parts(a, LOW)
    b_high, b_rest = in_parts(b, LOW)
    total = added(product(a_high, b_rest, PRECISION), a_rest, b_high, PRECISION)
    return added(total, a_high, b_high, PRECISION)


@triton.jit
def inverted(
    below: tl.tensor, CHUNK: tl.constexpr, LEVELS: tl.constexpr, LOW: tl.constexpr, PRECISION: tl.constexpr
) -> tl.tensor:
    """(I + below)⁻¹ in 32 bits; below [CHUNK, CHUNK] is zero on the diagonal and above it, CHUNK is 2 ** LEVELS.

    Inverses of neighbouring blocks are joined to that of a block twice as long, for all at once: with X the two
    inverses and N what the later block has of the earlier, it is X - X N X. Nothing grows in it that does not grow in
    the inverse itself, as powers of a matrix would.
    """
    row, column = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    # Two numbers that differ in this bit and in no higher one are in neighbouring blocks.
    apart = row ^ column
    inverse = tl.where(apart == 0, 1.0, 0.0) - tl.where(apart == 1, below, 0.0)
    for level in tl.static_range(1, LEVELS):
        between = tl.where((apart >> level) == 1, below, 0.0)
        inverse -= precise(inverse, precise(between, inverse, LOW, PRECISION), LOW, PRECISION)
    return inverse


@triton.jit
def likeness(
    rows: tl.tensor_descriptor,  # [batch × time, heads × KEY]
    columns: tl.tensor_descriptor,
    first: int,
    head: int,
    CHUNK: tl.constexpr,
    KEY: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """Products of tokens with tokens, [CHUNK, CHUNK]."""
    alike = tl.zeros([CHUNK, CHUNK], tl.float32)
    for i in range(KEY // KEY_BLOCK):
        place = head * KEY + i * KEY_BLOCK
        alike = added(alike, rows.load([first, place]), tl.trans(columns.load([first, place])), PRECISION)
    return alike


@triton.jit
def solve_kernel(
    queries: tl.tensor_descriptor,  # [batch × time, heads × KEY]
    keys: tl.tensor_descriptor,
    rate: tl.tensor,  # [batch, heads, time]
    since: tl.tensor,
    until: tl.tensor,
    written: tl.tensor_descriptor,  # X [batch × heads × time, CHUNK]; out, as all that follow
    read: tl.tensor_descriptor,  # P, likewise
    left: tl.tensor_descriptor,  # Zᵀ [batch × heads × chunks × KEY, CHUNK]
    heads: int,
    chunks: int,
    CHUNK: tl.constexpr,
    LEVELS: tl.constexpr,
    KEY: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A program has one chunk of one head."""
    chunk = tl.program_id(0)
    row, step = chunk // chunks, chunk % chunks
    head, first = row % heads, ((row // heads) * chunks + step) * CHUNK
    token = tl.arange(0, CHUNK)
    own = chunk * CHUNK + token
    alike = likeness(keys, keys, first, head, CHUNK, KEY, KEY_BLOCK, PRECISION)
    alike *= kept_within(since + chunk * CHUNK, CHUNK, False) * tl.load(rate + own)[:, None]
    inverse = inverted(tl.where(token[:, None] > token[None, :], alike, 0.0), CHUNK, LEVELS, keys.dtype, PRECISION)
    written.store([chunk * CHUNK, 0], inverse.to(written.dtype))
    scores = likeness(queries, keys, first, head, CHUNK, KEY, KEY_BLOCK, PRECISION)
    scores *= kept_within(since + chunk * CHUNK, CHUNK, False)
    read.store([chunk * CHUNK, 0], precise(scores, inverse, keys.dtype, PRECISION).to(read.dtype))
    high, rest = in_parts(inverse * tl.exp2(tl.load(until + own))[:, None], keys.dtype)
    for i in range(KEY // KEY_BLOCK):
        key = tl.trans(keys.load([first, head * KEY + i * KEY_BLOCK]))
        leaving = added(product(key, rest, PRECISION), key, high, PRECISION)
        left.store([chunk * KEY + i * KEY_BLOCK, 0], leaving.to(left.dtype))
