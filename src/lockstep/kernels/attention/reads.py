"""What queries read of the keys in their window, tile by tile, with the softmax made up as these come by.

Beside the keys of the text there may be a second row of as many, which are seen alike: what a memory said.

Tiles are of as many queries as keys, so that those of keys are seen whole but for two or three: that of the queries'
own places, and those where the window begins. What stands before the text or behind it, descriptors read as zeros and
do not write.

A tile of queries is the first operand of all its products. It comes by a descriptor and is never changed, so that
products take it from shared memory: ptxas of CUDA 12.8 to 13.0 forgets registers that a loop wants again.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from lockstep.kernels.memory.tiles import added, loaded, place, product, stored

OWN = tl.constexpr(16)
"""Persistent tokens, as many as a product needs; those that are not there nobody sees."""
LOG2_E = tl.constexpr(math.log2(math.e))
"""Exponentials are of two here: scores are multiplied by this."""
LOWEST = tl.constexpr(-1e30)
"""Below every score, and finite: rows that have seen nothing yet are compared with those that never will."""


@triton.jit
def own_tokens(own: tl.tensor, head: int, PERSISTENT: tl.constexpr, WIDTH: tl.constexpr) -> tl.tensor:
    """Keys or values [OWN, WIDTH] of a head's persistent tokens; the rest is zero."""
    there = tl.arange(0, OWN)[:, None] < PERSISTENT
    return tl.load(own + head * PERSISTENT * WIDTH + place(WIDTH, OWN, WIDTH), mask=there, other=0.0)


@triton.jit
def among_own(scores: tl.tensor, PERSISTENT: tl.constexpr) -> tl.tensor:
    """Scores [TOKENS, OWN] of the persistent tokens that there are."""
    return tl.where(tl.arange(0, OWN)[None, :] < PERSISTENT, scores, float("-inf"))


@triton.jit
def in_part(ahead: int, window: int, TOKENS: tl.constexpr) -> tl.tensor:
    """Whether some query of a tile does not see some key of that which begins so many places before."""
    return (ahead == 0) | (ahead + TOKENS > window)


@triton.jit
def among_seen(scores: tl.tensor, distance: tl.tensor, window: int) -> tl.tensor:
    """Scores of keys at these distances before their queries, where they are in the window."""
    return tl.where((distance >= 0) & (distance < window), scores, float("-inf"))


@triton.jit
def read_on(
    scores: tl.tensor,  # [TOKENS, keys]
    value: tl.tensor,  # [keys, WIDTH]
    top: tl.tensor,  # [TOKENS]: the highest score, as a power of two
    total: tl.tensor,  # [TOKENS]: sums of powers, relative to the highest
    read: tl.tensor,  # [TOKENS, WIDTH]: of values, so weighted
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The last three, with more keys in them."""
    higher = tl.maximum(top, tl.max(scores, axis=1) * SCALE)
    # Scaled here, where it costs nothing: one instruction multiplies and adds.
    weights = tl.exp2(scores * SCALE - higher[:, None])
    fading = tl.exp2(top - higher)
    read = added(read * fading[:, None], weights.to(value.dtype), value, PRECISION)
    return higher, total * fading + tl.sum(weights, axis=1), read


@triton.jit
def read_row(
    query: tl.tensor,  # [TOKENS, WIDTH]
    keys: tl.tensor_descriptor,  # [batch, kv_heads, time, WIDTH]
    values: tl.tensor_descriptor,
    sample: int,
    kv_head: int,
    tile: int,
    window: int,
    top: tl.tensor,
    total: tl.tensor,
    read: tl.tensor,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """As `read_on`, with all keys of a row that this tile of queries sees."""
    TOKENS: tl.constexpr = query.shape[0]
    places = tl.arange(0, TOKENS)
    for step in range(tl.maximum(tile - tl.cdiv(window - 1, TOKENS), 0), tile + 1):
        ahead = (tile - step) * TOKENS
        scores = product(query, tl.trans(loaded(keys, sample, kv_head, step, TOKENS)), PRECISION)
        if in_part(ahead, window, TOKENS):
            scores = among_seen(scores, (ahead + places)[:, None] - places[None, :], window)
        value = loaded(values, sample, kv_head, step, TOKENS)
        top, total, read = read_on(scores, value, top, total, read, SCALE, PRECISION)
    return top, total, read


@triton.jit
def window_kernel(
    queries: tl.tensor_descriptor,  # [batch, heads, time, WIDTH]
    keys: tl.tensor_descriptor,  # [batch, kv_heads, time, WIDTH]
    values: tl.tensor_descriptor,
    said_keys: tl.tensor_descriptor | None,  # the same
    said_values: tl.tensor_descriptor | None,
    own_keys: tl.tensor,  # [kv_heads, PERSISTENT, WIDTH]
    own_values: tl.tensor,
    reads: tl.tensor_descriptor,  # [batch, heads, time, WIDTH]; what follows is what comes out
    totals: tl.tensor,  # [batch, heads, tiles × TOKENS]: logarithms to the base of two
    rows: int,
    heads: int,
    tiles: int,
    window: int,
    GROUP: tl.constexpr,
    PERSISTENT: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program is one tile of queries of one head; those that see most begin."""
    row, tile = tl.program_id(0) % rows, tiles - 1 - tl.program_id(0) // rows
    sample, head = row // heads, row % heads
    kv_head = head // GROUP
    SCALE: tl.constexpr = WIDTH**-0.5 * LOG2_E
    query = loaded(queries, sample, head, tile, TOKENS)
    top = tl.full([TOKENS], LOWEST, tl.float32)
    total = tl.zeros([TOKENS], tl.float32)
    read = tl.zeros([TOKENS, WIDTH], tl.float32)
    if PERSISTENT:
        own_key = own_tokens(own_keys, kv_head, PERSISTENT, WIDTH)
        own_value = own_tokens(own_values, kv_head, PERSISTENT, WIDTH)
        own_scores = among_own(product(query, tl.trans(own_key), PRECISION), PERSISTENT)
        top, total, read = read_on(own_scores, own_value, top, total, read, SCALE, PRECISION)
    if said_keys is not None:
        top, total, read = read_row(
            query, said_keys, said_values, sample, kv_head, tile, window, top, total, read, SCALE, PRECISION
        )
    top, total, read = read_row(query, keys, values, sample, kv_head, tile, window, top, total, read, SCALE, PRECISION)
    stored(reads, read / total[:, None], sample, head, tile * TOKENS)
    tl.store(totals + (row * tiles + tile) * TOKENS + tl.arange(0, TOKENS), top + tl.log2(total))
