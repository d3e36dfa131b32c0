"""What queries find, all chunks side by side, given the memory at their starts; and the adjoints of that.

One program is one chunk of one row. It goes over the hidden units in blocks, so that little is held at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.activations import activate, slope_of
from lockstep.kernels.memory.heads import normalised, said, through_norm
from lockstep.kernels.memory.tiles import added, place, product


@triton.jit
def read_kernel(
    queries: tl.tensor_descriptor,  # [rows × time, WIDTH]
    keys: tl.tensor_descriptor,
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    written: tl.tensor_descriptor,  # [rows × time, CHUNK]
    anchor: tl.tensor_descriptor,  # [heads or rows × HIDDEN, WIDTH]
    anchor_2: tl.tensor_descriptor,  # [heads or rows × WIDTH, HIDDEN]
    firsts: tl.tensor_descriptor,  # [rows × chunks × kinds × HIDDEN, WIDTH]
    seconds: tl.tensor_descriptor,  # [rows × chunks × kinds × WIDTH, HIDDEN]
    inputs: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]: what was written
    first_errors: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]
    reads: tl.tensor_descriptor,  # [rows × time, WIDTH]
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
    chunk = tl.program_id(0)
    row = chunk // chunks
    low = keys.dtype
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    KINDS: tl.constexpr = 2 if MOMENTUM else 1
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    share = tl.load(kept + token)[None, :]
    carry = tl.load(carried + token)[None, :] if MOMENTUM else share
    shares = tl.trans(written.load([chunk * CHUNK, 0]))
    query = tl.trans(queries.load([chunk * CHUNK, 0]))
    scores = product(keys.load([chunk * CHUNK, 0]), query, PRECISION)
    scores = (scores * -shares.to(tl.float32)).to(low)
    kept_query = (query.to(tl.float32) * share).to(low)
    carried_query = (query.to(tl.float32) * carry).to(low)
    scores_2 = tl.zeros([CHUNK, CHUNK], tl.float32)
    answer = tl.zeros([WIDTH, CHUNK], tl.float32)
    for part in range(SPLIT):
        unit, deep = part * BLOCK, chunk * HIDDEN + part * BLOCK
        first, second = chunk * KINDS * HIDDEN + unit, chunk * KINDS * WIDTH
        found = product(first_errors.load([deep, 0]), scores, PRECISION)
        found = added(found, firsts.load([first, 0]), kept_query, PRECISION)
        if ANCHOR:
            found = added(found, anchor.load([(row % anchor_rows) * HIDDEN + unit, 0]), query, PRECISION)
        if MOMENTUM:
            found = added(found, firsts.load([first + HIDDEN, 0]), carried_query, PRECISION)
        read = activate(found, ACTIVATION)
        low_read = read.to(low)
        scores_2 = added(scores_2, tl.trans(inputs.load([deep, 0])), low_read, PRECISION)
        answer = added(answer, seconds.load([second, unit]), (read * share).to(low), PRECISION)
        if ANCHOR:
            answer = added(answer, anchor_2.load([(row % anchor_rows) * WIDTH, unit]), low_read, PRECISION)
        if MOMENTUM:
            answer = added(answer, seconds.load([second + WIDTH, unit]), (read * carry).to(low), PRECISION)
    scores_2 = (scores_2 * -shares.to(tl.float32)).to(low)
    answer = added(answer, last_errors.load([chunk * WIDTH, 0]), scores_2, PRECISION)
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gain + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + wide)[:, None] if NORM else 0.0
    normal, _ = normalised(answer, NORM, 0)
    answer = said(normal, query.to(tl.float32), g, s, NORM, RESIDUAL)
    reads.store([chunk * CHUNK, 0], tl.trans(answer.to(low)))


@triton.jit
def read_backward_kernel(
    queries: tl.tensor_descriptor,  # [rows × time, WIDTH]
    keys: tl.tensor_descriptor,
    reads_bar: tl.tensor_descriptor,
    gain: tl.tensor,  # [heads, WIDTH]
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    written: tl.tensor_descriptor,  # [rows × time, CHUNK]
    anchor: tl.tensor_descriptor,  # [heads or rows × HIDDEN, WIDTH]
    anchor_2: tl.tensor_descriptor,  # [heads or rows × WIDTH, HIDDEN]
    firsts: tl.tensor_descriptor,  # [rows × chunks × kinds × HIDDEN, WIDTH]
    seconds: tl.tensor_descriptor,  # [rows × chunks × kinds × WIDTH, HIDDEN]
    inputs: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]
    first_errors: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]
    read_inputs: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]; what follows is what comes out
    read_outputs_bar: tl.tensor,
    read_last_bar: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]
    first_errors_bar: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]: adjoints of what was written
    last_errors_bar: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]
    inputs_bar: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]
    keys_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]
    queries_bar: tl.tensor_descriptor,
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
    chunk = tl.program_id(0)
    row = chunk // chunks
    low = keys.dtype
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    KINDS: tl.constexpr = 2 if MOMENTUM else 1
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    tile, square = place(CHUNK, BLOCK, CHUNK), place(CHUNK, CHUNK, CHUNK)
    read_inputs += chunk.to(tl.int64) * HIDDEN * CHUNK
    read_outputs_bar += chunk.to(tl.int64) * HIDDEN * CHUNK
    written_bar += chunk.to(tl.int64) * CHUNK * CHUNK
    share = tl.load(kept + token)[None, :]
    carry = tl.load(carried + token)[None, :] if MOMENTUM else share

    # What was read, once more.
    query = tl.trans(queries.load([chunk * CHUNK, 0]))
    shares = tl.trans(written.load([chunk * CHUNK, 0]))
    scores = product(keys.load([chunk * CHUNK, 0]), query, PRECISION)
    low_scores = (scores * -shares.to(tl.float32)).to(low)
    kept_query = (query.to(tl.float32) * share).to(low)
    carried_query = (query.to(tl.float32) * carry).to(low)
    scores_2 = tl.zeros([CHUNK, CHUNK], tl.float32)
    answer = tl.zeros([WIDTH, CHUNK], tl.float32)
    for part in range(SPLIT):
        unit, deep = part * BLOCK, chunk * HIDDEN + part * BLOCK
        first, second = chunk * KINDS * HIDDEN + unit, chunk * KINDS * WIDTH
        found = product(first_errors.load([deep, 0]), low_scores, PRECISION)
        found = added(found, firsts.load([first, 0]), kept_query, PRECISION)
        if ANCHOR:
            found = added(found, anchor.load([(row % anchor_rows) * HIDDEN + unit, 0]), query, PRECISION)
        if MOMENTUM:
            found = added(found, firsts.load([first + HIDDEN, 0]), carried_query, PRECISION)
        read = activate(found, ACTIVATION)
        low_read = read.to(low)
        tl.store(read_inputs + unit * CHUNK + tile, low_read)
        # The slope waits where the adjoint will be.
        tl.store(read_outputs_bar + unit * CHUNK + tile, slope_of(found, ACTIVATION).to(low))
        scores_2 = added(scores_2, tl.trans(inputs.load([deep, 0])), low_read, PRECISION)
        answer = added(answer, seconds.load([second, unit]), (read * share).to(low), PRECISION)
        if ANCHOR:
            answer = added(answer, anchor_2.load([(row % anchor_rows) * WIDTH, unit]), low_read, PRECISION)
        if MOMENTUM:
            answer = added(answer, seconds.load([second + WIDTH, unit]), (read * carry).to(low), PRECISION)
    low_scores = (scores_2 * -shares.to(tl.float32)).to(low)
    answer = added(answer, last_errors.load([chunk * WIDTH, 0]), low_scores, PRECISION)
    normal, scale = normalised(answer, NORM, 0)

    # Back through the second matrix.
    bar = tl.trans(reads_bar.load([chunk * CHUNK, 0])).to(tl.float32)
    if NORM:
        wide = tl.arange(0, WIDTH)
        tl.store(gain_bar + chunk * WIDTH + wide, tl.sum(bar * normal, axis=1))
        tl.store(shift_bar + chunk * WIDTH + wide, tl.sum(bar, axis=1))
        g = tl.load(gain + (row % heads) * WIDTH + wide)[:, None]
        bar = through_norm(bar * g, normal, scale, NORM, 0)
    last_bar = bar.to(low)
    read_last_bar.store([chunk * WIDTH, 0], last_bar)
    last_back = product(last_bar, tl.trans(low_scores), PRECISION)
    last_errors_bar.store([chunk * WIDTH, 0], last_back.to(low))
    scores_bar = product(tl.trans(last_errors.load([chunk * WIDTH, 0])), last_bar, PRECISION)
    tl.store(written_bar + square, (scores_bar * -scores_2).to(low))
    low_scores_bar = (scores_bar * -shares.to(tl.float32)).to(low)

    # Block by block to the first, and back through it.
    tl.debug_barrier()
    shares = tl.trans(written.load([chunk * CHUNK, 0]))
    scores = product(keys.load([chunk * CHUNK, 0]), query, PRECISION)
    low_scores = (scores * -shares.to(tl.float32)).to(low)
    scores_bar = tl.zeros([CHUNK, CHUNK], tl.float32)
    query_bar = tl.zeros([WIDTH, CHUNK], tl.float32)
    share_bar = tl.zeros([CHUNK], tl.float32)
    carry_bar = tl.zeros([CHUNK], tl.float32)
    for part in range(SPLIT):
        unit, deep = part * BLOCK, chunk * HIDDEN + part * BLOCK
        first, second = chunk * KINDS * HIDDEN + unit, chunk * KINDS * WIDTH
        read = tl.load(read_inputs + unit * CHUNK + tile)
        inputs_back = product(read, tl.trans(low_scores_bar), PRECISION)
        inputs_bar.store([deep, 0], inputs_back.to(low))
        back = product(tl.trans(seconds.load([second, unit])), last_bar, PRECISION)
        share_bar += tl.sum(back * read, axis=0)
        back = added(back * share, inputs.load([deep, 0]), low_scores_bar, PRECISION)
        if ANCHOR:
            returning = tl.trans(anchor_2.load([(row % anchor_rows) * WIDTH, unit]))
            back = added(back, returning, last_bar, PRECISION)
        if MOMENTUM:
            more = product(tl.trans(seconds.load([second + WIDTH, unit])), last_bar, PRECISION)
            carry_bar += tl.sum(more * read, axis=0)
            back += more * carry
        back *= tl.load(read_outputs_bar + unit * CHUNK + tile)
        low_bar = back.to(low)
        tl.store(read_outputs_bar + unit * CHUNK + tile, low_bar)
        errors_back = product(low_bar, tl.trans(low_scores), PRECISION)
        first_errors_bar.store([deep, 0], errors_back.to(low))
        scores_bar = added(scores_bar, tl.trans(first_errors.load([deep, 0])), low_bar, PRECISION)
        # Through what of the first matrix was kept and carried on: how much that was, and the query.
        copy = firsts.load([first, 0])
        share_bar += tl.sum(product(copy, query, PRECISION) * back, axis=0)
        query_bar = added(query_bar, tl.trans(copy), (back * share).to(low), PRECISION)
        if ANCHOR:
            returning = tl.trans(anchor.load([(row % anchor_rows) * HIDDEN + unit, 0]))
            query_bar = added(query_bar, returning, low_bar, PRECISION)
        if MOMENTUM:
            copy = firsts.load([first + HIDDEN, 0])
            carry_bar += tl.sum(product(copy, query, PRECISION) * back, axis=0)
            query_bar = added(query_bar, tl.trans(copy), (back * carry).to(low), PRECISION)

    # What all blocks say together.
    tl.store(kept_bar + token, share_bar)
    if MOMENTUM:
        tl.store(carried_bar + token, carry_bar)
    key = keys.load([chunk * CHUNK, 0])
    shares_bar = tl.load(written_bar + square) - scores_bar * product(key, query, PRECISION)
    tl.store(written_bar + square, shares_bar.to(low))
    low_scores_bar = (scores_bar * -shares.to(tl.float32)).to(low)
    key_bar = product(query, tl.trans(low_scores_bar), PRECISION)
    keys_bar.store([chunk * CHUNK, 0], tl.trans(key_bar.to(low)))
    query_bar = added(query_bar, tl.trans(key), low_scores_bar, PRECISION)
    if RESIDUAL:
        query_bar += tl.trans(reads_bar.load([chunk * CHUNK, 0]))
    queries_bar.store([chunk * CHUNK, 0], tl.trans(query_bar.to(low)))
