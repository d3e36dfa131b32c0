"""What queries find, all chunks side by side, given the memory at their starts; and the adjoints of that.

One program is one chunk of one row. It goes over the hidden units in blocks, so that little is held at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.activations import activate, slope_of
from lockstep.kernels.memory.heads import normalised, said, through_norm
from lockstep.kernels.memory.tiles import added, place, product, turned


@triton.jit
def read_kernel(
    queries: tl.tensor,  # [rows, time, WIDTH]
    keys: tl.tensor,
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    written: tl.tensor,  # [rows, time, CHUNK]
    anchors: tl.tensor,  # [rows or heads, 2, …]
    copies: tl.tensor,  # [rows, chunks, 2 or 4, …]
    inputs: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]: what was written
    first_errors: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]
    last_errors: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]
    reads: tl.tensor,  # [rows, time, WIDTH]
    heads: int,
    anchor_rows: int,
    chunks: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    MOMENTUM: tl.constexpr,
    ANCHOR: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    P: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    chunk = tl.program_id(0).to(tl.int64)
    row = chunk // chunks
    low = keys.dtype.element_ty
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    SIZE: tl.constexpr = WIDTH * HIDDEN
    PARTS: tl.constexpr = 4 if MOMENTUM else 2
    token = chunk * CHUNK
    here = chunk * CHUNK * WIDTH
    copies += chunk * PARTS * SIZE
    if ANCHOR:
        anchors += (row % anchor_rows) * 2 * SIZE
    share = tl.load(kept + token + tl.arange(0, CHUNK))[None, :]
    carry = tl.load(carried + token + tl.arange(0, CHUNK))[None, :] if MOMENTUM else share
    shares = tl.load(written + chunk * CHUNK * CHUNK + turned(CHUNK, CHUNK, CHUNK))
    query = tl.load(queries + here + turned(WIDTH, CHUNK, WIDTH))
    scores = product(tl.load(keys + here + place(WIDTH, CHUNK, WIDTH)), query, PRECISION)
    scores = (scores * -shares.to(tl.float32)).to(low)
    kept_query = (query.to(tl.float32) * share).to(low)
    carried_query = (query.to(tl.float32) * carry).to(low)
    scores_2 = tl.zeros([CHUNK, CHUNK], tl.float32)
    answer = tl.zeros([WIDTH, CHUNK], tl.float32)
    for part in range(SPLIT):
        deep = (chunk * HIDDEN + part * BLOCK) * CHUNK
        mine, mine_2 = part * BLOCK * WIDTH, SIZE + part * BLOCK
        found = product(tl.load(first_errors + deep + place(CHUNK, BLOCK, CHUNK)), scores, PRECISION)
        found = added(found, tl.load(copies + mine + place(WIDTH, BLOCK, WIDTH)), kept_query, PRECISION)
        if ANCHOR:
            found = added(found, tl.load(anchors + mine + place(WIDTH, BLOCK, WIDTH)), query, PRECISION)
        if MOMENTUM:
            found = added(
                found, tl.load(copies + 2 * SIZE + mine + place(WIDTH, BLOCK, WIDTH)), carried_query, PRECISION
            )
        read = activate(found, ACTIVATION)
        low_read = read.to(low)
        scores_2 = added(scores_2, tl.load(inputs + deep + turned(CHUNK, BLOCK, CHUNK)), low_read, PRECISION)
        answer = added(
            answer, tl.load(copies + mine_2 + place(HIDDEN, WIDTH, BLOCK)), (read * share).to(low), PRECISION
        )
        if ANCHOR:
            answer = added(answer, tl.load(anchors + mine_2 + place(HIDDEN, WIDTH, BLOCK)), low_read, PRECISION)
        if MOMENTUM:
            answer = added(
                answer,
                tl.load(copies + 2 * SIZE + mine_2 + place(HIDDEN, WIDTH, BLOCK)),
                (read * carry).to(low),
                PRECISION,
            )
    scores_2 = (scores_2 * -shares.to(tl.float32)).to(low)
    answer = added(answer, tl.load(last_errors + here + place(CHUNK, WIDTH, CHUNK)), scores_2, PRECISION)
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gain + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + wide)[:, None] if NORM else 0.0
    normal, scale = normalised(answer, NORM, 0)
    answer = said(normal, query.to(tl.float32), g, s, NORM, RESIDUAL)
    tl.store(reads + here + turned(WIDTH, CHUNK, WIDTH), answer.to(low))


@triton.jit
def read_backward_kernel(
    queries: tl.tensor,  # [rows, time, WIDTH]
    keys: tl.tensor,
    reads_bar: tl.tensor,
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    written: tl.tensor,  # [rows, time, CHUNK]
    anchors: tl.tensor,
    copies: tl.tensor,
    inputs: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]
    first_errors: tl.tensor,
    last_errors: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]
    read_inputs: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]; what follows is what comes out
    read_outputs_bar: tl.tensor,
    read_last_bar: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]
    first_errors_bar: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]: adjoints of what was written
    last_errors_bar: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]
    inputs_bar: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]
    keys_bar: tl.tensor,  # [rows, time, WIDTH]
    queries_bar: tl.tensor,
    kept_bar: tl.tensor,  # [rows, time]
    carried_bar: tl.tensor,
    written_bar: tl.tensor,  # [rows, chunks, CHUNK, CHUNK], turned
    gain_bar: tl.tensor,  # [rows, chunks, WIDTH]
    shift_bar: tl.tensor,
    heads: int,
    anchor_rows: int,
    chunks: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    MOMENTUM: tl.constexpr,
    ANCHOR: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    P: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    chunk = tl.program_id(0).to(tl.int64)
    row = chunk // chunks
    low = keys.dtype.element_ty
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    SIZE: tl.constexpr = WIDTH * HIDDEN
    PARTS: tl.constexpr = 4 if MOMENTUM else 2
    token = chunk * CHUNK
    here = chunk * CHUNK * WIDTH
    square = chunk * CHUNK * CHUNK
    copies += chunk * PARTS * SIZE
    if ANCHOR:
        anchors += (row % anchor_rows) * 2 * SIZE
    share = tl.load(kept + token + tl.arange(0, CHUNK))[None, :]
    carry = tl.load(carried + token + tl.arange(0, CHUNK))[None, :] if MOMENTUM else share

    # What was read, once more.
    query = tl.load(queries + here + turned(WIDTH, CHUNK, WIDTH))
    shares = tl.load(written + square + turned(CHUNK, CHUNK, CHUNK))
    scores = product(tl.load(keys + here + place(WIDTH, CHUNK, WIDTH)), query, PRECISION)
    low_scores = (scores * -shares.to(tl.float32)).to(low)
    kept_query = (query.to(tl.float32) * share).to(low)
    carried_query = (query.to(tl.float32) * carry).to(low)
    scores_2 = tl.zeros([CHUNK, CHUNK], tl.float32)
    answer = tl.zeros([WIDTH, CHUNK], tl.float32)
    for part in range(SPLIT):
        deep = (chunk * HIDDEN + part * BLOCK) * CHUNK
        mine, mine_2 = part * BLOCK * WIDTH, SIZE + part * BLOCK
        found = product(tl.load(first_errors + deep + place(CHUNK, BLOCK, CHUNK)), low_scores, PRECISION)
        found = added(found, tl.load(copies + mine + place(WIDTH, BLOCK, WIDTH)), kept_query, PRECISION)
        if ANCHOR:
            found = added(found, tl.load(anchors + mine + place(WIDTH, BLOCK, WIDTH)), query, PRECISION)
        if MOMENTUM:
            found = added(
                found, tl.load(copies + 2 * SIZE + mine + place(WIDTH, BLOCK, WIDTH)), carried_query, PRECISION
            )
        read = activate(found, ACTIVATION)
        low_read = read.to(low)
        tl.store(read_inputs + deep + place(CHUNK, BLOCK, CHUNK), low_read)
        # The slope waits where the adjoint will be.
        tl.store(read_outputs_bar + deep + place(CHUNK, BLOCK, CHUNK), slope_of(found, ACTIVATION).to(low))
        scores_2 = added(scores_2, tl.load(inputs + deep + turned(CHUNK, BLOCK, CHUNK)), low_read, PRECISION)
        answer = added(
            answer, tl.load(copies + mine_2 + place(HIDDEN, WIDTH, BLOCK)), (read * share).to(low), PRECISION
        )
        if ANCHOR:
            answer = added(answer, tl.load(anchors + mine_2 + place(HIDDEN, WIDTH, BLOCK)), low_read, PRECISION)
        if MOMENTUM:
            answer = added(
                answer,
                tl.load(copies + 2 * SIZE + mine_2 + place(HIDDEN, WIDTH, BLOCK)),
                (read * carry).to(low),
                PRECISION,
            )
    low_scores = (scores_2 * -shares.to(tl.float32)).to(low)
    answer = added(answer, tl.load(last_errors + here + place(CHUNK, WIDTH, CHUNK)), low_scores, PRECISION)
    normal, scale = normalised(answer, NORM, 0)

    # Back through the second matrix.
    bar = tl.load(reads_bar + here + turned(WIDTH, CHUNK, WIDTH)).to(tl.float32)
    if NORM:
        wide = tl.arange(0, WIDTH)
        tl.store(gain_bar + chunk * WIDTH + wide, tl.sum(bar * normal, axis=1))
        tl.store(shift_bar + chunk * WIDTH + wide, tl.sum(bar, axis=1))
        g = tl.load(gain + (row % heads) * WIDTH + wide)[:, None]
        bar = through_norm(bar * g, normal, scale, NORM, 0)
    last_bar = bar.to(low)
    tl.store(read_last_bar + here + place(CHUNK, WIDTH, CHUNK), last_bar)
    last_back = product(last_bar, tl.trans(low_scores), PRECISION)
    tl.store(last_errors_bar + here + place(CHUNK, WIDTH, CHUNK), last_back.to(low))
    scores_bar = product(tl.load(last_errors + here + turned(CHUNK, WIDTH, CHUNK)), last_bar, PRECISION)
    tl.store(written_bar + square + place(CHUNK, CHUNK, CHUNK), (scores_bar * -scores_2).to(low))
    low_scores_bar = (scores_bar * -shares.to(tl.float32)).to(low)

    # Block by block to the first, and back through it.
    tl.debug_barrier()
    shares = tl.load(written + square + turned(CHUNK, CHUNK, CHUNK))
    scores = product(tl.load(keys + here + place(WIDTH, CHUNK, WIDTH)), query, PRECISION)
    low_scores = (scores * -shares.to(tl.float32)).to(low)
    scores_bar = tl.zeros([CHUNK, CHUNK], tl.float32)
    query_bar = tl.zeros([WIDTH, CHUNK], tl.float32)
    share_bar = tl.zeros([CHUNK], tl.float32)
    carry_bar = tl.zeros([CHUNK], tl.float32)
    for part in range(SPLIT):
        deep = (chunk * HIDDEN + part * BLOCK) * CHUNK
        mine, mine_2 = part * BLOCK * WIDTH, SIZE + part * BLOCK
        tile, back_matrix = place(CHUNK, BLOCK, CHUNK), turned(HIDDEN, WIDTH, BLOCK)
        read = tl.load(read_inputs + deep + tile)
        inputs_back = product(read, tl.trans(low_scores_bar), PRECISION)
        tl.store(inputs_bar + deep + tile, inputs_back.to(low))
        back = product(tl.load(copies + mine_2 + back_matrix), last_bar, PRECISION)
        share_bar += tl.sum(back * read, axis=0)
        back = added(back * share, tl.load(inputs + deep + tile), low_scores_bar, PRECISION)
        if ANCHOR:
            back = added(back, tl.load(anchors + mine_2 + back_matrix), last_bar, PRECISION)
        if MOMENTUM:
            more = product(tl.load(copies + 2 * SIZE + mine_2 + back_matrix), last_bar, PRECISION)
            carry_bar += tl.sum(more * read, axis=0)
            back += more * carry
        back *= tl.load(read_outputs_bar + deep + tile)
        low_bar = back.to(low)
        tl.store(read_outputs_bar + deep + tile, low_bar)
        errors_back = product(low_bar, tl.trans(low_scores), PRECISION)
        tl.store(first_errors_bar + deep + tile, errors_back.to(low))
        errors = tl.load(first_errors + deep + turned(CHUNK, BLOCK, CHUNK))
        scores_bar = added(scores_bar, errors, low_bar, PRECISION)
        # Through what of the first matrix was kept and carried on: how much that was, and the query.
        matrix, matrix_turned = place(WIDTH, BLOCK, WIDTH), turned(WIDTH, BLOCK, WIDTH)
        share_bar += tl.sum(product(tl.load(copies + mine + matrix), query, PRECISION) * back, axis=0)
        query_bar = added(query_bar, tl.load(copies + mine + matrix_turned), (back * share).to(low), PRECISION)
        if ANCHOR:
            query_bar = added(query_bar, tl.load(anchors + mine + matrix_turned), low_bar, PRECISION)
        if MOMENTUM:
            more = product(tl.load(copies + 2 * SIZE + mine + matrix), query, PRECISION)
            carry_bar += tl.sum(more * back, axis=0)
            velocity = tl.load(copies + 2 * SIZE + mine + matrix_turned)
            query_bar = added(query_bar, velocity, (back * carry).to(low), PRECISION)

    # What all blocks say together.
    tl.store(kept_bar + token + tl.arange(0, CHUNK), share_bar)
    if MOMENTUM:
        tl.store(carried_bar + token + tl.arange(0, CHUNK), carry_bar)
    scores = product(tl.load(keys + here + place(WIDTH, CHUNK, WIDTH)), query, PRECISION)
    shares_bar = tl.load(written_bar + square + place(CHUNK, CHUNK, CHUNK)) - scores_bar * scores
    tl.store(written_bar + square + place(CHUNK, CHUNK, CHUNK), shares_bar.to(low))
    low_scores_bar = (scores_bar * -shares.to(tl.float32)).to(low)
    key_bar = product(query, tl.trans(low_scores_bar), PRECISION)
    tl.store(keys_bar + here + turned(WIDTH, CHUNK, WIDTH), key_bar.to(low))
    query_bar = added(query_bar, tl.load(keys + here + turned(WIDTH, CHUNK, WIDTH)), low_scores_bar, PRECISION)
    if RESIDUAL:
        query_bar += tl.load(reads_bar + here + turned(WIDTH, CHUNK, WIDTH))
    tl.store(queries_bar + here + turned(WIDTH, CHUNK, WIDTH), query_bar.to(low))
