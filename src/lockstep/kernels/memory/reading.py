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
    anchors: tl.tensor_descriptor,  # [heads or rows × 2 × WIDTH, HIDDEN]
    copies: tl.tensor_descriptor,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    inputs: tl.tensor_descriptor,  # [rows × time, HIDDEN]: what was written
    first_errors: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × time, WIDTH]
    reads: tl.tensor_descriptor,
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
    PARTS: tl.constexpr = 4 if MOMENTUM else 2
    here, copy, anchor = chunk * CHUNK, chunk * PARTS * WIDTH, (row % anchor_rows) * 2 * WIDTH
    token = here + tl.arange(0, CHUNK)
    share = tl.load(kept + token)[:, None]
    carry = tl.load(carried + token)[:, None] if MOMENTUM else share
    shares, query = written.load([here, 0]), queries.load([here, 0])
    scores = product(query, tl.trans(keys.load([here, 0])), PRECISION)
    scores = (scores * -shares.to(tl.float32)).to(low)
    scores_2 = tl.zeros([CHUNK, CHUNK], tl.float32)
    answer = tl.zeros([CHUNK, WIDTH], tl.float32)
    # Not `range`: ptxas of CUDA 12.8 to 13.0 forgets that in a loop a first operand is wanted again, and reuses the
    # registers in which scores were waiting.
    for part in tl.static_range(SPLIT):
        unit = part * BLOCK
        found = product(query, copies.load([copy, unit]), PRECISION) * share
        found = added(found, scores, first_errors.load([here, unit]), PRECISION)
        if ANCHOR:
            found = added(found, query, anchors.load([anchor, unit]), PRECISION)
        if MOMENTUM:
            found += product(query, copies.load([copy + 2 * WIDTH, unit]), PRECISION) * carry
        read = activate(found, ACTIVATION)
        low_read = read.to(low)
        scores_2 = added(scores_2, low_read, tl.trans(inputs.load([here, unit])), PRECISION)
        answer = added(answer, (read * share).to(low), tl.trans(copies.load([copy + WIDTH, unit])), PRECISION)
        if ANCHOR:
            answer = added(answer, low_read, tl.trans(anchors.load([anchor + WIDTH, unit])), PRECISION)
        if MOMENTUM:
            velocity = tl.trans(copies.load([copy + 3 * WIDTH, unit]))
            answer = added(answer, (read * carry).to(low), velocity, PRECISION)
    scores_2 = (scores_2 * -shares.to(tl.float32)).to(low)
    answer = added(answer, scores_2, last_errors.load([here, 0]), PRECISION)
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gain + wide)[None, :] if NORM else 1.0
    s = tl.load(shift + wide)[None, :] if NORM else 0.0
    normal, _ = normalised(answer, NORM, 1)
    reads.store([here, 0], said(normal, query.to(tl.float32), g, s, NORM, RESIDUAL).to(low))


@triton.jit
def read_backward_kernel(
    queries: tl.tensor_descriptor,  # [rows × time, WIDTH]
    keys: tl.tensor_descriptor,
    reads_bar: tl.tensor_descriptor,
    gain: tl.tensor,  # [heads, WIDTH]
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    written: tl.tensor_descriptor,  # [rows × time, CHUNK]
    anchors: tl.tensor_descriptor,  # [heads or rows × 2 × WIDTH, HIDDEN]
    copies: tl.tensor_descriptor,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    inputs: tl.tensor_descriptor,  # [rows × time, HIDDEN]
    first_errors: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × time, WIDTH]
    read_inputs: tl.tensor,  # [rows, time, HIDDEN]; what follows is what comes out
    read_outputs_bar: tl.tensor,
    read_last_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]
    first_errors_bar: tl.tensor_descriptor,  # [rows × time, HIDDEN]: adjoints of what was written
    last_errors_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]
    inputs_bar: tl.tensor_descriptor,  # [rows × time, HIDDEN]
    keys_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]
    queries_bar: tl.tensor_descriptor,
    kept_bar: tl.tensor,  # [rows, time]
    carried_bar: tl.tensor,
    written_bar: tl.tensor,  # [rows, time, CHUNK]
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
    """Scores are wanted both ways round, and so are computed both ways round where they are a first operand."""
    chunk = tl.program_id(0)
    row = chunk // chunks
    low = keys.dtype
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    PARTS: tl.constexpr = 4 if MOMENTUM else 2
    here, copy, anchor = chunk * CHUNK, chunk * PARTS * WIDTH, (row % anchor_rows) * 2 * WIDTH
    token, tile = here + tl.arange(0, CHUNK), place(HIDDEN, CHUNK, BLOCK)
    read_inputs += here.to(tl.int64) * HIDDEN
    read_outputs_bar += here.to(tl.int64) * HIDDEN
    written_bar += here.to(tl.int64) * CHUNK + place(CHUNK, CHUNK, CHUNK)
    share = tl.load(kept + token)[:, None]
    carry = tl.load(carried + token)[:, None] if MOMENTUM else share

    # What was read, once more.
    query = queries.load([here, 0])
    scores = product(query, tl.trans(keys.load([here, 0])), PRECISION)
    low_scores = (scores * -written.load([here, 0]).to(tl.float32)).to(low)
    scores_2 = tl.zeros([CHUNK, CHUNK], tl.float32)
    answer = tl.zeros([CHUNK, WIDTH], tl.float32)
    for part in range(SPLIT):
        unit = part * BLOCK
        found = product(low_scores, first_errors.load([here, unit]), PRECISION)
        found += product(query, copies.load([copy, unit]), PRECISION) * share
        if ANCHOR:
            found = added(found, query, anchors.load([anchor, unit]), PRECISION)
        if MOMENTUM:
            found += product(query, copies.load([copy + 2 * WIDTH, unit]), PRECISION) * carry
        read = activate(found, ACTIVATION)
        low_read = read.to(low)
        tl.store(read_inputs + unit + tile, low_read)
        # The slope waits where the adjoint will be.
        tl.store(read_outputs_bar + unit + tile, slope_of(found, ACTIVATION).to(low))
        scores_2 = added(scores_2, low_read, tl.trans(inputs.load([here, unit])), PRECISION)
        answer = added(answer, (read * share).to(low), tl.trans(copies.load([copy + WIDTH, unit])), PRECISION)
        if ANCHOR:
            answer = added(answer, low_read, tl.trans(anchors.load([anchor + WIDTH, unit])), PRECISION)
        if MOMENTUM:
            velocity = tl.trans(copies.load([copy + 3 * WIDTH, unit]))
            answer = added(answer, (read * carry).to(low), velocity, PRECISION)
    shares = written.load([here, 0])
    low_scores = (scores_2 * -shares.to(tl.float32)).to(low)
    answer = added(answer, low_scores, last_errors.load([here, 0]), PRECISION)
    normal, scale = normalised(answer, NORM, 1)

    # Back through the last matrix's own words.
    bar = reads_bar.load([here, 0]).to(tl.float32)
    if NORM:
        wide = tl.arange(0, WIDTH)
        tl.store(gain_bar + chunk * WIDTH + wide, tl.sum(bar * normal, axis=0))
        tl.store(shift_bar + chunk * WIDTH + wide, tl.sum(bar, axis=0))
        g = tl.load(gain + (row % heads) * WIDTH + wide)[None, :]
        bar = through_norm(bar * g, normal, scale, NORM, 1)
    last_bar = bar.to(low)
    read_last_bar.store([here, 0], last_bar)
    last_error = last_errors.load([here, 0])
    scores_bar = product(last_bar, tl.trans(last_error), PRECISION)
    tl.store(written_bar, (scores_bar * -scores_2).to(low))
    low_scores_bar = (scores_bar * -shares.to(tl.float32)).to(low)
    tl.debug_barrier()
    turned_shares = tl.trans(written.load([here, 0])).to(tl.float32)
    turned_scores = tl.zeros([CHUNK, CHUNK], tl.float32)
    for part in range(SPLIT):
        unit = part * BLOCK
        read = tl.load(read_inputs + unit + tile)
        turned_scores = added(turned_scores, inputs.load([here, unit]), tl.trans(read), PRECISION)
    last_back = product((turned_scores * -turned_shares).to(low), last_bar, PRECISION)
    last_errors_bar.store([here, 0], last_back.to(low))
    turned_scores_bar = product(last_error, tl.trans(last_bar), PRECISION)
    turned_scores_bar = (turned_scores_bar * -turned_shares).to(low)

    # Block by block to the first.
    share_bar = tl.zeros([CHUNK], tl.float32)
    carry_bar = tl.zeros([CHUNK], tl.float32)
    for part in range(SPLIT):
        unit = part * BLOCK
        read = tl.load(read_inputs + unit + tile)
        inputs_bar.store([here, unit], product(turned_scores_bar, read, PRECISION).to(low))
        back = product(last_bar, copies.load([copy + WIDTH, unit]), PRECISION)
        share_bar += tl.sum(back * read, axis=1)
        back = added(back * share, low_scores_bar, inputs.load([here, unit]), PRECISION)
        if ANCHOR:
            back = added(back, last_bar, anchors.load([anchor + WIDTH, unit]), PRECISION)
        if MOMENTUM:
            more = product(last_bar, copies.load([copy + 3 * WIDTH, unit]), PRECISION)
            carry_bar += tl.sum(more * read, axis=1)
            back += more * carry
        back *= tl.load(read_outputs_bar + unit + tile)
        tl.store(read_outputs_bar + unit + tile, back.to(low))
    tl.debug_barrier()

    # And back through it: what of it was written, kept and carried on.
    turned_scores = product(keys.load([here, 0]), tl.trans(query), PRECISION)
    turned_scores = (turned_scores * -tl.trans(written.load([here, 0])).to(tl.float32)).to(low)
    scores_bar = tl.zeros([CHUNK, CHUNK], tl.float32)
    query_bar = tl.zeros([CHUNK, WIDTH], tl.float32)
    key_bar = tl.zeros([CHUNK, CHUNK], tl.float32)
    for part in range(SPLIT):
        unit = part * BLOCK
        read_bar = tl.load(read_outputs_bar + unit + tile)
        first_errors_bar.store([here, unit], product(turned_scores, read_bar, PRECISION).to(low))
        error = first_errors.load([here, unit])
        scores_bar = added(scores_bar, read_bar, tl.trans(error), PRECISION)
        key_bar = added(key_bar, error, tl.trans(read_bar), PRECISION)
        held = copies.load([copy, unit])
        share_bar += tl.sum(product(query, held, PRECISION) * read_bar, axis=1)
        query_bar += product(read_bar, tl.trans(held), PRECISION) * share
        if ANCHOR:
            query_bar = added(query_bar, read_bar, tl.trans(anchors.load([anchor, unit])), PRECISION)
        if MOMENTUM:
            held = copies.load([copy + 2 * WIDTH, unit])
            carry_bar += tl.sum(product(query, held, PRECISION) * read_bar, axis=1)
            query_bar += product(read_bar, tl.trans(held), PRECISION) * carry

    # What all blocks say together.
    tl.store(kept_bar + token, share_bar)
    if MOMENTUM:
        tl.store(carried_bar + token, carry_bar)
    key = keys.load([here, 0])
    shares_bar = tl.load(written_bar) - scores_bar * product(query, tl.trans(key), PRECISION)
    tl.store(written_bar, shares_bar.to(low))
    turned_shares = tl.trans(written.load([here, 0])).to(tl.float32)
    keys_bar.store([here, 0], product((key_bar * -turned_shares).to(low), query, PRECISION).to(low))
    low_scores_bar = (scores_bar * -written.load([here, 0]).to(tl.float32)).to(low)
    query_bar = added(query_bar, low_scores_bar, key, PRECISION)
    if RESIDUAL:
        query_bar += reads_bar.load([here, 0])
    queries_bar.store([here, 0], query_bar.to(low))
