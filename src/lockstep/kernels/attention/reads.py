"""What queries read of the keys in their window, tile by tile, with the softmax made up as these come by.

Beside the keys of the text there may be a second row of as many, which are seen alike: what a memory said.

Tiles of keys are seen whole but for a few: those of the queries' own places, and those where the window begins. What
stands before the text or behind it, descriptors read as zeros and do not write.

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
    """Scores [QUERIES, OWN] of the persistent tokens that there are."""
    return tl.where(tl.arange(0, OWN)[None, :] < PERSISTENT, scores, float("-inf"))


@triton.jit
def in_part(ahead: int, window: int, QUERIES: tl.constexpr, KEYS: tl.constexpr) -> tl.tensor:
    """Whether some query of a tile does not see some key of that which begins so many places before."""
    return (ahead < KEYS - 1) | (ahead + QUERIES > window)


@triton.jit
def among_seen(scores: tl.tensor, distance: tl.tensor, window: int) -> tl.tensor:
    """Scores of keys at these distances before their queries, where they are in the window."""
    return tl.where((distance >= 0) & (distance < window), scores, float("-inf"))


@triton.jit
def read_on(
    scores: tl.tensor,  # [QUERIES, keys]
    value: tl.tensor,  # [keys, WIDTH]
    top: tl.tensor,  # [QUERIES]: the highest score, as a power of two
    total: tl.tensor,  # [QUERIES]: sums of powers, relative to the highest
    read: tl.tensor,  # [QUERIES, WIDTH]: of values, so weighted
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
def first_seen(query: int, window: int, KEYS: tl.constexpr) -> tl.tensor:
    """The first tile of keys that a query, or one after it, sees."""
    return tl.maximum(query - window + 1, 0) // KEYS


@triton.jit
def read_row(
    query: tl.tensor,  # [QUERIES, WIDTH]
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
    QUERIES: tl.constexpr = query.shape[0]
    KEYS: tl.constexpr = keys.block_shape[2]
    places, theirs = tl.arange(0, QUERIES)[:, None], tl.arange(0, KEYS)[None, :]
    for step in range(first_seen(tile * QUERIES, window, KEYS), tl.cdiv((tile + 1) * QUERIES, KEYS)):
        ahead = tile * QUERIES - step * KEYS
        scores = product(query, tl.trans(loaded(keys, sample, kv_head, step, KEYS)), PRECISION)
        if in_part(ahead, window, QUERIES, KEYS):
            scores = among_seen(scores, ahead + places - theirs, window)
        value = loaded(values, sample, kv_head, step, KEYS)
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
    totals: tl.tensor,  # [batch, heads, room]: logarithms to the base of two
    rows: int,
    heads: int,
    tiles: int,
    room: int,
    window: int,
    GROUP: tl.constexpr,
    PERSISTENT: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program is one tile of queries of one head; those that see most begin."""
    row, tile = tl.program_id(0) % rows, tiles - 1 - tl.program_id(0) // rows
    sample, head = row // heads, row % heads
    kv_head = head // GROUP
    SCALE: tl.constexpr = WIDTH**-0.5 * LOG2_E
    QUERIES: tl.constexpr = queries.block_shape[2]
    query = loaded(queries, sample, head, tile, QUERIES)
    top = tl.full([QUERIES], LOWEST, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    read = tl.zeros([QUERIES, WIDTH], tl.float32)
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
    stored(reads, read / total[:, None], sample, head, tile * QUERIES)
    tl.store(totals + row * room + tile * QUERIES + tl.arange(0, QUERIES), top + tl.log2(total))
