"""What queries find in a linear memory, all chunks side by side, and the adjoints of that.

One program is one chunk of one row; the memory at its start and its errors are known.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.heads import normalised, said, through_norm
from lockstep.kernels.memory.tiles import added, place, product, turned


@triton.jit
def answers(
    query: tl.tensor,  # [WIDTH, CHUNK]
    scores: tl.tensor,  # [CHUNK, CHUNK]: how much of each error a query finds
    share: tl.tensor,  # [1, CHUNK]
    carry: tl.tensor,
    anchors: tl.tensor,  # pointers: [OUT, WIDTH]
    copies: tl.tensor,  # [1 or 2, OUT, WIDTH]
    errors: tl.tensor,  # [OUT, CHUNK]
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    MOMENTUM: tl.constexpr,
    ANCHOR: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """What the memory says to each query, before the norm: [OUT, CHUNK]."""
    low = query.dtype
    matrix = place(WIDTH, OUT, WIDTH)
    answer = product(tl.load(errors + place(CHUNK, OUT, CHUNK)), scores, PRECISION)
    answer = added(answer, tl.load(copies + matrix), (query.to(tl.float32) * share).to(low), PRECISION)
    if MOMENTUM:
        velocity = tl.load(copies + OUT * WIDTH + matrix)
        answer = added(answer, velocity, (query.to(tl.float32) * carry).to(low), PRECISION)
    if ANCHOR:
        answer = added(answer, tl.load(anchors + matrix), query, PRECISION)
    return answer


@triton.jit
def linear_read_kernel(
    queries: tl.tensor,  # [rows, time, WIDTH]
    keys: tl.tensor,
    gain: tl.tensor,  # [heads, OUT]
    shift: tl.tensor,
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    written: tl.tensor,  # [rows, time, CHUNK]
    anchors: tl.tensor,  # [rows or heads, OUT, WIDTH]
    copies: tl.tensor,  # [rows, chunks, 1 or 2, OUT, WIDTH]
    errors: tl.tensor,  # [rows, chunks, OUT, CHUNK]
    reads: tl.tensor,  # [rows, time, OUT]
    heads: int,
    anchor_rows: int,
    chunks: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    MOMENTUM: tl.constexpr,
    ANCHOR: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    chunk = tl.program_id(0).to(tl.int64)
    row = chunk // chunks
    low = keys.dtype.element_ty
    PARTS: tl.constexpr = 2 if MOMENTUM else 1
    token = chunk * CHUNK
    here, there = chunk * CHUNK * WIDTH, chunk * CHUNK * OUT
    if ANCHOR:
        anchors += (row % anchor_rows) * OUT * WIDTH
    share = tl.load(kept + token + tl.arange(0, CHUNK))[None, :]
    carry = tl.load(carried + token + tl.arange(0, CHUNK))[None, :] if MOMENTUM else share
    query = tl.load(queries + here + turned(WIDTH, CHUNK, WIDTH))
    scores = product(tl.load(keys + here + place(WIDTH, CHUNK, WIDTH)), query, PRECISION)
    scores *= -tl.load(written + token * CHUNK + turned(CHUNK, CHUNK, CHUNK)).to(tl.float32)
    answer = answers(
        query,
        scores.to(low),
        share,
        carry,
        anchors,
        copies + chunk * PARTS * OUT * WIDTH,
        errors + there,
        CHUNK,
        WIDTH,
        OUT,
        MOMENTUM,
        ANCHOR,
        PRECISION,
    )
    wide = (row % heads) * OUT + tl.arange(0, OUT)
    g = tl.load(gain + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + wide)[:, None] if NORM else 0.0
    normal, _ = normalised(answer, NORM, 0)
    answer = said(normal, query.to(tl.float32), g, s, NORM, RESIDUAL)
    tl.store(reads + there + turned(OUT, CHUNK, OUT), answer.to(low))


@triton.jit
def linear_read_backward_kernel(
    queries: tl.tensor,  # [rows, time, WIDTH]
    keys: tl.tensor,
    reads_bar: tl.tensor,  # [rows, time, OUT]
    gain: tl.tensor,  # [heads, OUT]
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    written: tl.tensor,  # [rows, time, CHUNK]
    anchors: tl.tensor,  # [rows or heads, OUT, WIDTH]
    copies: tl.tensor,  # [rows, chunks, 1 or 2, OUT, WIDTH]
    errors: tl.tensor,  # [rows, chunks, OUT, CHUNK]; what follows is what comes out
    outputs_bar: tl.tensor,  # [rows, chunks, OUT, CHUNK]: of what was read, before the norm
    errors_bar: tl.tensor,  # [rows, chunks, OUT, CHUNK]
    queries_bar: tl.tensor,  # [rows, time, WIDTH]
    keys_bar: tl.tensor,
    kept_bar: tl.tensor,  # [rows, time]
    carried_bar: tl.tensor,
    written_bar: tl.tensor,  # [rows, time, CHUNK]
    gain_bar: tl.tensor,  # [rows, chunks, OUT]
    shift_bar: tl.tensor,
    heads: int,
    anchor_rows: int,
    chunks: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    MOMENTUM: tl.constexpr,
    ANCHOR: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    chunk = tl.program_id(0).to(tl.int64)
    row = chunk // chunks
    low = keys.dtype.element_ty
    PARTS: tl.constexpr = 2 if MOMENTUM else 1
    token = chunk * CHUNK
    here, there = chunk * CHUNK * WIDTH, chunk * CHUNK * OUT
    copies += chunk * PARTS * OUT * WIDTH
    if ANCHOR:
        anchors += (row % anchor_rows) * OUT * WIDTH
    share = tl.load(kept + token + tl.arange(0, CHUNK))[None, :]
    carry = tl.load(carried + token + tl.arange(0, CHUNK))[None, :] if MOMENTUM else share
    query = tl.load(queries + here + turned(WIDTH, CHUNK, WIDTH))
    shares = tl.load(written + token * CHUNK + turned(CHUNK, CHUNK, CHUNK)).to(tl.float32)
    scores = product(tl.load(keys + here + place(WIDTH, CHUNK, WIDTH)), query, PRECISION)
    low_scores = (scores * -shares).to(low)

    # Through the norm.
    bar = tl.load(reads_bar + there + turned(OUT, CHUNK, OUT)).to(tl.float32)
    if NORM:
        answer = answers(
            query,
            low_scores,
            share,
            carry,
            anchors,
            copies,
            errors + there,
            CHUNK,
            WIDTH,
            OUT,
            MOMENTUM,
            ANCHOR,
            PRECISION,
        )
        normal, scale = normalised(answer, NORM, 0)
        wide = tl.arange(0, OUT)
        tl.store(gain_bar + chunk * OUT + wide, tl.sum(bar * normal, axis=1))
        tl.store(shift_bar + chunk * OUT + wide, tl.sum(bar, axis=1))
        bar = through_norm(bar * tl.load(gain + (row % heads) * OUT + wide)[:, None], normal, scale, NORM, 0)
    low_bar = bar.to(low)
    tl.store(outputs_bar + there + place(CHUNK, OUT, CHUNK), low_bar)

    # To what was written in the chunk.
    error_bar = product(low_bar, tl.trans(low_scores), PRECISION)
    tl.store(errors_bar + there + place(CHUNK, OUT, CHUNK), error_bar.to(low))
    scores_bar = product(tl.load(errors + there + turned(CHUNK, OUT, CHUNK)), low_bar, PRECISION)
    tl.store(
        written_bar + token * CHUNK + turned(CHUNK, CHUNK, CHUNK),
        (scores_bar * -scores).to(written_bar.dtype.element_ty),
    )
    low_scores = (scores_bar * -shares).to(low)
    key_bar = product(query, tl.trans(low_scores), PRECISION)
    tl.store(keys_bar + here + turned(WIDTH, CHUNK, WIDTH), key_bar.to(low))

    # To the query, and to how much it found of what was there at the chunk's start.
    matrix = turned(WIDTH, OUT, WIDTH)
    back = product(tl.load(copies + matrix), low_bar, PRECISION)
    tl.store(kept_bar + token + tl.arange(0, CHUNK), tl.sum(back * query, axis=0))
    query_bar = back * share
    if MOMENTUM:
        back = product(tl.load(copies + OUT * WIDTH + matrix), low_bar, PRECISION)
        tl.store(carried_bar + token + tl.arange(0, CHUNK), tl.sum(back * query, axis=0))
        query_bar += back * carry
    if ANCHOR:
        query_bar = added(query_bar, tl.load(anchors + matrix), low_bar, PRECISION)
    query_bar = added(query_bar, tl.load(keys + here + turned(WIDTH, CHUNK, WIDTH)), low_scores, PRECISION)
    if RESIDUAL:
        query_bar += tl.load(reads_bar + here + turned(WIDTH, CHUNK, WIDTH))
    tl.store(queries_bar + here + turned(WIDTH, CHUNK, WIDTH), query_bar.to(low))
