"""The way back through attention in a window: once by tiles of queries, once by tiles of keys.

Weights are computed again both times, the second time as [keys, queries]: the transpose of a product is no first
operand. What comes of persistent tokens each tile of queries leaves for itself, to be added up; their weights too are
computed both ways.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.attention.reads import (
    LOG2_E,
    OWN,
    among_own,
    among_seen,
    first_seen,
    in_part,
    own_tokens,
)
from lockstep.kernels.attention.turning import turned_back
from lockstep.kernels.memory.tiles import added, loaded, place, product, stored


@triton.jit
def of_own(
    own_key: tl.tensor,  # [OWN, WIDTH]
    own_value: tl.tensor,
    query: tl.tensor,  # [QUERIES, WIDTH]
    bar: tl.tensor,  # [QUERIES, WIDTH]: of what the queries read
    total: tl.tensor,  # [QUERIES]
    common: tl.tensor,  # [QUERIES]
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Adjoints [OWN, WIDTH] of keys, up to a factor, and of values; of tokens that are not there, anything.

    In 16 bits Triton 3.6 gets the transposes of these wrong on Hopper.
    """
    weights = tl.exp2(product(own_key, tl.trans(query), PRECISION) * SCALE - total[None, :])
    scores_bar = weights * (product(own_value, tl.trans(bar), PRECISION) - common[None, :])
    return product(scores_bar.to(query.dtype), query, PRECISION), product(weights.to(bar.dtype), bar, PRECISION)


@triton.jit
def through_row(
    query_bar: tl.tensor,  # [QUERIES, WIDTH]
    query: tl.tensor,
    bar: tl.tensor,
    keys: tl.tensor_descriptor,  # [batch, kv_heads, time, WIDTH]
    values: tl.tensor_descriptor,
    sample: int,
    kv_head: int,
    tile: int,
    window: int,
    total: tl.tensor,  # [QUERIES]
    common: tl.tensor,  # [QUERIES]
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """Adjoints of queries, up to a factor, with those by all keys of a row that they see."""
    QUERIES: tl.constexpr = query.shape[0]
    KEYS: tl.constexpr = keys.block_shape[2]
    places, theirs = tl.arange(0, QUERIES)[:, None], tl.arange(0, KEYS)[None, :]
    for step in range(first_seen(tile * QUERIES, window, KEYS), tl.cdiv((tile + 1) * QUERIES, KEYS)):
        ahead = tile * QUERIES - step * KEYS
        key = loaded(keys, sample, kv_head, step, KEYS)
        scores = product(query, tl.trans(key), PRECISION)
        if in_part(ahead, window, QUERIES, KEYS):
            scores = among_seen(scores, ahead + places - theirs, window)
        value = loaded(values, sample, kv_head, step, KEYS)
        weights_bar = product(bar, tl.trans(value), PRECISION)
        scores_bar = tl.exp2(scores * SCALE - total[:, None]) * (weights_bar - common[:, None])
        query_bar = added(query_bar, scores_bar.to(query.dtype), key, PRECISION)
    return query_bar


@triton.jit
def window_queries_kernel(
    queries: tl.tensor_descriptor,  # [batch, heads, time, WIDTH]
    keys: tl.tensor_descriptor,  # [batch, kv_heads, time, WIDTH]
    values: tl.tensor_descriptor,
    said_keys: tl.tensor_descriptor | None,  # the same
    said_values: tl.tensor_descriptor | None,
    own_keys: tl.tensor,  # [kv_heads, PERSISTENT, WIDTH]
    own_values: tl.tensor,
    turns: tl.tensor | None,  # [2, places, HALF]
    reads: tl.tensor_descriptor,  # [batch, heads, time, WIDTH]
    reads_bar: tl.tensor_descriptor,
    totals: tl.tensor,  # [batch, heads, room]
    queries_bar: tl.tensor_descriptor,  # [batch, heads, time, WIDTH]; what follows is what comes out
    own_bar: tl.tensor,  # [batch, heads, tiles, 2, PERSISTENT, WIDTH] in 32 bits: of keys and of values
    shared: tl.tensor,  # [batch, heads, room]: what all scores of a query have in common
    rows: int,
    heads: int,
    tiles: int,
    room: int,
    window: int,
    turning_places: int,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    PERSISTENT: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program is one tile of queries of one head; those that see most begin."""
    row, tile = tl.program_id(0) % rows, tiles - 1 - tl.program_id(0) // rows
    sample, head = row // heads, row % heads
    kv_head = head // GROUP
    ROOT: tl.constexpr = WIDTH**-0.5
    SCALE: tl.constexpr = ROOT * LOG2_E
    QUERIES: tl.constexpr = queries.block_shape[2]
    line = row * room + tile * QUERIES + tl.arange(0, QUERIES)
    query = loaded(queries, sample, head, tile, QUERIES)
    bar = loaded(reads_bar, sample, head, tile, QUERIES)
    read = loaded(reads, sample, head, tile, QUERIES)
    total = tl.load(totals + line)
    common = tl.sum(read.to(tl.float32) * bar.to(tl.float32), axis=1)
    tl.store(shared + line, common)
    query_bar = tl.zeros([QUERIES, WIDTH], tl.float32)
    if PERSISTENT:
        own_key = own_tokens(own_keys, kv_head, PERSISTENT, WIDTH)
        own_value = own_tokens(own_values, kv_head, PERSISTENT, WIDTH)
        own_scores = among_own(product(query, tl.trans(own_key), PRECISION), PERSISTENT)
        own_weights = tl.exp2(own_scores * SCALE - total[:, None])
        own_weights_bar = product(bar, tl.trans(own_value), PRECISION)
        own_scores_bar = (own_weights * (own_weights_bar - common[:, None])).to(query.dtype)
        query_bar = added(query_bar, own_scores_bar, own_key, PRECISION)
        key_bar, value_bar = of_own(own_key, own_value, query, bar, total, common, SCALE, PRECISION)
        there = tl.arange(0, OWN)[:, None] < PERSISTENT
        own_bar += (row * tiles + tile).to(tl.int64) * 2 * PERSISTENT * WIDTH + place(WIDTH, OWN, WIDTH)
        tl.store(own_bar, key_bar * ROOT, mask=there)
        tl.store(own_bar + PERSISTENT * WIDTH, value_bar, mask=there)
    if said_keys is not None:
        query_bar = through_row(
            query_bar,
            query,
            bar,
            said_keys,
            said_values,
            sample,
            kv_head,
            tile,
            window,
            total,
            common,
            SCALE,
            PRECISION,
        )
    query_bar = through_row(
        query_bar, query, bar, keys, values, sample, kv_head, tile, window, total, common, SCALE, PRECISION
    )
    query_bar *= ROOT
    if HALF:
        query_bar = turned_back(query_bar, turns, tile * QUERIES, turning_places, HALF)
    stored(queries_bar, query_bar, sample, head, tile * QUERIES)


@triton.jit
def window_keys_kernel(
    queries: tl.tensor_descriptor,  # [batch, heads, time, WIDTH]
    keys: tl.tensor_descriptor,  # [batch, kv_heads, time, WIDTH]
    values: tl.tensor_descriptor,
    turns: tl.tensor | None,  # [2, places, HALF]
    reads_bar: tl.tensor_descriptor,  # [batch, heads, time, WIDTH]
    totals: tl.tensor,  # [batch, heads, room]
    shared: tl.tensor,
    keys_bar: tl.tensor_descriptor,  # [batch, kv_heads, time, WIDTH]; what follows is what comes out
    values_bar: tl.tensor_descriptor,
    rows: int,
    kv_heads: int,
    tiles: int,
    room: int,
    window: int,
    time: int,
    turning_places: int,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program is one tile of keys of one head, and goes through all tiles of queries that see it.

    Those that most queries see begin.
    """
    row, tile = tl.program_id(0) % rows, tl.program_id(0) // rows
    sample, kv_head = row // kv_heads, row % kv_heads
    ROOT: tl.constexpr = WIDTH**-0.5
    SCALE: tl.constexpr = ROOT * LOG2_E
    QUERIES: tl.constexpr = queries.block_shape[2]
    KEYS: tl.constexpr = keys.block_shape[2]
    places, theirs = tl.arange(0, QUERIES)[None, :], tl.arange(0, KEYS)[:, None]
    key = loaded(keys, sample, kv_head, tile, KEYS)
    value = loaded(values, sample, kv_head, tile, KEYS)
    key_bar = tl.zeros([KEYS, WIDTH], tl.float32)
    value_bar = tl.zeros([KEYS, WIDTH], tl.float32)
    first = tile * KEYS // QUERIES
    seeing = tl.cdiv(tl.minimum((tile + 1) * KEYS + window - 1, time), QUERIES) - first
    # One loop through the heads of a group as well: two, one in the other, would take more registers.
    for step in range(GROUP * seeing):
        member, later = step // seeing, first + step % seeing
        query = loaded(queries, sample, kv_head * GROUP + member, later, QUERIES)
        bar = loaded(reads_bar, sample, kv_head * GROUP + member, later, QUERIES)
        line = (row * GROUP + member) * room + later * QUERIES + tl.arange(0, QUERIES)
        scores = product(key, tl.trans(query), PRECISION)
        ahead = later * QUERIES - tile * KEYS
        if in_part(ahead, window, QUERIES, KEYS):
            scores = among_seen(scores, ahead + places - theirs, window)
        weights = tl.exp2(scores * SCALE - tl.load(totals + line)[None, :])
        value_bar = added(value_bar, weights.to(key.dtype), bar, PRECISION)
        weights_bar = product(value, tl.trans(bar), PRECISION)
        scores_bar = weights * (weights_bar - tl.load(shared + line)[None, :])
        key_bar = added(key_bar, scores_bar.to(key.dtype), query, PRECISION)
    key_bar *= ROOT
    if HALF:
        key_bar = turned_back(key_bar, turns, tile * KEYS, turning_places, HALF)
    stored(keys_bar, key_bar, sample, kv_head, tile * KEYS)
    stored(values_bar, value_bar, sample, kv_head, tile * KEYS)
