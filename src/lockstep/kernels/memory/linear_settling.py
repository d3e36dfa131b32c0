"""What is left of a linear memory's way back when the adjoints of every chunk's end are known: chunks side by side."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.heads import through_last_error
from lockstep.kernels.memory.tiles import added, place, product, turned


@triton.jit
def linear_settle_kernel(
    keys: tl.tensor,  # [rows, time, WIDTH]
    end_written: tl.tensor,  # [rows, time]
    end_velocity_written: tl.tensor,
    copies: tl.tensor,  # [rows, chunks, 1 or 2, OUT, WIDTH]
    errors: tl.tensor,  # [rows, chunks, OUT, CHUNK]
    copies_bar: tl.tensor,  # [rows, chunks, 1 or 2, OUT, WIDTH]
    keys_bar: tl.tensor,  # [rows, time, WIDTH]: by reads; out: and by where the memory goes
    end_kept_bar: tl.tensor,  # [rows, chunks]
    end_carried_bar: tl.tensor,
    end_written_bar: tl.tensor,  # [rows, time]
    end_velocity_kept_bar: tl.tensor,  # [rows, chunks]
    end_velocity_written_bar: tl.tensor,  # [rows, time]
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    MOMENTUM: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Through where the memory goes in one chunk of one row."""
    chunk = tl.program_id(0).to(tl.int64)
    low = keys.dtype.element_ty
    SIZE: tl.constexpr = OUT * WIDTH
    PARTS: tl.constexpr = 2 if MOMENTUM else 1
    index = tl.arange(0, CHUNK)
    token = chunk * CHUNK
    here, there = chunk * CHUNK * WIDTH, chunk * CHUNK * OUT
    copies += chunk * PARTS * SIZE
    copies_bar += chunk * PARTS * SIZE
    matrix, matrix_turned = place(WIDTH, OUT, WIDTH), turned(WIDTH, OUT, WIDTH)
    key = tl.load(keys + here + turned(WIDTH, CHUNK, WIDTH))
    error = tl.load(errors + there + place(CHUNK, OUT, CHUNK)).to(tl.float32)
    key_bar = tl.load(keys_bar + here + turned(WIDTH, CHUNK, WIDTH)).to(tl.float32)
    write = tl.load(end_written + token + index)[None, :]
    key_bar = added(key_bar, tl.load(copies_bar + matrix_turned), (error * -write).to(low), PRECISION)
    bar = tl.load(copies_bar + matrix)
    tl.store(end_written_bar + token + index, -tl.sum(product(bar, key, PRECISION) * error, axis=0))
    tl.store(end_kept_bar + chunk, tl.sum(bar.to(tl.float32) * tl.load(copies + matrix)))
    if MOMENTUM:
        velocity = tl.load(copies + SIZE + matrix).to(tl.float32)
        tl.store(end_carried_bar + chunk, tl.sum(velocity * bar))
        faster = tl.load(end_velocity_written + token + index)[None, :]
        key_bar = added(key_bar, tl.load(copies_bar + SIZE + matrix_turned), (error * -faster).to(low), PRECISION)
        bar = tl.load(copies_bar + SIZE + matrix)
        tl.store(end_velocity_written_bar + token + index, -tl.sum(product(bar, key, PRECISION) * error, axis=0))
        tl.store(end_velocity_kept_bar + chunk, tl.sum(velocity * bar))
    tl.store(keys_bar + here + turned(WIDTH, CHUNK, WIDTH), key_bar.to(low))


@triton.jit
def through_head_kernel(
    keys: tl.tensor,  # [rows, time, WIDTH]
    values: tl.tensor,  # [rows, time, OUT]
    threshold: tl.tensor,  # [rows, time]
    gain: tl.tensor,  # [heads, OUT]
    shift: tl.tensor,
    anchors: tl.tensor,  # [rows or heads, OUT, WIDTH]
    copies: tl.tensor,  # [rows, chunks, 1 or 2, OUT, WIDTH]
    normals: tl.tensor,  # [rows, chunks, OUT, CHUNK]
    scales: tl.tensor,  # [rows, time]
    errors_bar: tl.tensor,  # [rows, chunks, OUT, CHUNK]: of the errors; out: of what the memory said to keys
    keys_bar: tl.tensor,  # [rows, time, WIDTH]; out: and by the errors
    values_bar: tl.tensor,  # [rows, time, OUT]
    threshold_bar: tl.tensor,  # [rows, time]
    gain_bar: tl.tensor,  # [rows, chunks, OUT]: by reads; out: all of it
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
    BIAS: tl.constexpr,
    P: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Through errors that are gradients at the start of one chunk of one row."""
    chunk = tl.program_id(0).to(tl.int64)
    row = chunk // chunks
    low = keys.dtype.element_ty
    PARTS: tl.constexpr = 2 if MOMENTUM else 1
    HUBER: tl.constexpr = BIAS == "norm" or BIAS == "coordinate" or BIAS == "switch"
    CURVED: tl.constexpr = NORM or BIAS != "l2"
    index, wide = tl.arange(0, CHUNK), tl.arange(0, OUT)
    token = chunk * CHUNK
    here, there = chunk * CHUNK * WIDTH, chunk * CHUNK * OUT
    tile, said = place(CHUNK, OUT, CHUNK), turned(OUT, CHUNK, OUT)
    output_bar = tl.load(errors_bar + there + tile).to(tl.float32)
    loss_bar = output_bar
    if CURVED:
        value = tl.load(values + there + said).to(tl.float32)
        own = tl.load(keys + here + said).to(tl.float32) if RESIDUAL else value
        normal = tl.load(normals + there + tile).to(tl.float32)
        scale = tl.load(scales + token + index)[None, :]
        limit = tl.load(threshold + token + index)[None, :] if HUBER else 0.0
        g = tl.load(gain + (row % heads) * OUT + wide)[:, None] if NORM else 1.0
        s = tl.load(shift + (row % heads) * OUT + wide)[:, None] if NORM else 0.0
        output_bar, loss_bar, gains_bar, limits_bar = through_last_error(
            output_bar, normal, scale, own, value, g, s, limit, NORM, RESIDUAL, BIAS, P, 0
        )
        tl.store(errors_bar + there + tile, output_bar.to(low))
        if NORM:
            by_reads = tl.load(gain_bar + chunk * OUT + wide)
            tl.store(gain_bar + chunk * OUT + wide, by_reads + tl.sum(gains_bar, axis=1))
            by_reads = tl.load(shift_bar + chunk * OUT + wide)
            tl.store(shift_bar + chunk * OUT + wide, by_reads + tl.sum(loss_bar, axis=1))
        if HUBER:
            tl.store(threshold_bar + token + index, tl.sum(limits_bar, axis=0))
    tl.store(values_bar + there + said, (-loss_bar).to(low))
    tl.debug_barrier()
    key_bar = tl.load(keys_bar + here + turned(WIDTH, CHUNK, WIDTH)).to(tl.float32)
    if RESIDUAL:
        key_bar -= tl.load(values_bar + there + said)
    weights = tl.load(copies + chunk * PARTS * OUT * WIDTH + turned(WIDTH, OUT, WIDTH))
    if ANCHOR:
        anchors += (row % anchor_rows) * OUT * WIDTH
        weights = (weights.to(tl.float32) + tl.load(anchors + turned(WIDTH, OUT, WIDTH))).to(low)
    key_bar = added(key_bar, weights, tl.load(errors_bar + there + tile), PRECISION)
    tl.store(keys_bar + here + turned(WIDTH, CHUNK, WIDTH), key_bar.to(low))


@triton.jit
def through_solution_kernel(
    keys: tl.tensor,  # [rows, time, WIDTH]
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    written: tl.tensor,  # [rows, time, CHUNK]
    anchors: tl.tensor,  # [rows or heads, OUT, WIDTH]
    copies: tl.tensor,  # [rows, chunks, 1 or 2, OUT, WIDTH]
    errors: tl.tensor,  # [rows, chunks, OUT, CHUNK]
    inverse: tl.tensor,  # [rows, chunks, CHUNK, CHUNK] in 32 bits
    errors_bar: tl.tensor,  # [rows, chunks, OUT, CHUNK]: of the errors; out: of the system's right side
    keys_bar: tl.tensor,  # [rows, time, WIDTH]; out: and by the errors
    values_bar: tl.tensor,  # [rows, time, OUT]
    kept_bar: tl.tensor,  # [rows, time]: by reads; out: and by the errors, whose tokens find what the one before left
    carried_bar: tl.tensor,
    written_bar: tl.tensor,  # [rows, time, CHUNK]
    anchor_rows: int,
    chunks: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    MOMENTUM: tl.constexpr,
    ANCHOR: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Through errors that solve the triangular system of one tile of one row."""
    chunk = tl.program_id(0).to(tl.int64)
    low = keys.dtype.element_ty
    SIZE: tl.constexpr = OUT * WIDTH
    PARTS: tl.constexpr = 2 if MOMENTUM else 1
    index = tl.arange(0, CHUNK)
    later = index > 0
    token = chunk * CHUNK
    here, there, square = chunk * CHUNK * WIDTH, chunk * CHUNK * OUT, chunk * CHUNK * CHUNK
    copies += chunk * PARTS * SIZE
    key = tl.load(keys + here + turned(WIDTH, CHUNK, WIDTH))
    key_bar = tl.load(keys_bar + here + turned(WIDTH, CHUNK, WIDTH)).to(tl.float32)

    # The right side: values, and what the memory at the tile's start says.
    solution = tl.load(inverse + square + place(CHUNK, CHUNK, CHUNK)).to(low)
    bar = product(tl.load(errors_bar + there + place(CHUNK, OUT, CHUNK)), solution, PRECISION)
    low_bar = bar.to(low)
    tl.store(values_bar + there + turned(OUT, CHUNK, OUT), (-bar).to(low))
    if RESIDUAL:
        key_bar += bar
    back = product(tl.load(copies + turned(WIDTH, OUT, WIDTH)), low_bar, PRECISION)
    share = tl.load(kept + token + index - 1, mask=later, other=1.0)[None, :]
    key_bar += back * share
    by_reads = tl.load(kept_bar + token + index - 1, mask=later, other=0.0)
    tl.store(kept_bar + token + index - 1, by_reads + tl.sum(back * key, axis=0), mask=later)
    if MOMENTUM:
        back = product(tl.load(copies + SIZE + turned(WIDTH, OUT, WIDTH)), low_bar, PRECISION)
        carry = tl.load(carried + token + index - 1, mask=later, other=0.0)[None, :]
        key_bar += back * carry
        by_reads = tl.load(carried_bar + token + index - 1, mask=later, other=0.0)
        tl.store(carried_bar + token + index - 1, by_reads + tl.sum(back * key, axis=0), mask=later)
    if ANCHOR:
        anchors += (chunk // chunks % anchor_rows) * SIZE
        key_bar = added(key_bar, tl.load(anchors + turned(WIDTH, OUT, WIDTH)), low_bar, PRECISION)

    # The system itself, turned: keys times keys, as far as they are written.
    system_bar = product(tl.load(errors + there + turned(CHUNK, OUT, CHUNK)), (-bar).to(low), PRECISION)
    tl.store(errors_bar + there + place(CHUNK, OUT, CHUNK), low_bar)
    scores = product(tl.load(keys + here + place(WIDTH, CHUNK, WIDTH)), key, PRECISION)
    before = written_bar + square - CHUNK + turned(CHUNK, CHUNK, CHUNK)
    by_reads = tl.load(before, mask=later[None, :], other=0.0).to(tl.float32)
    tl.store(before, (by_reads + system_bar * scores).to(written_bar.dtype.element_ty), mask=later[None, :])
    found = written + square - CHUNK + turned(CHUNK, CHUNK, CHUNK)
    shares = tl.load(found, mask=later[None, :], other=0.0).to(tl.float32)
    low_scores = (system_bar * shares).to(low)
    key_bar = added(key_bar, key, low_scores, PRECISION)
    key_bar = added(key_bar, key, tl.trans(low_scores), PRECISION)
    tl.store(keys_bar + here + turned(WIDTH, CHUNK, WIDTH), key_bar.to(low))


@triton.jit
def linear_anchor_kernel(
    queries: tl.tensor,  # [rows, time, WIDTH]
    keys: tl.tensor,
    outputs_bar: tl.tensor,  # [rows, chunks, OUT, CHUNK]: of what was read
    answers_bar: tl.tensor,  # [rows, chunks, OUT, CHUNK]: of what was said to keys
    anchors_bar: tl.tensor,  # [groups, OUT, WIDTH] in 32 bits
    span: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    ERRORS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Adjoints of the anchor by `span` chunks: by reads, and by errors unless these are given."""
    group = tl.program_id(0).to(tl.int64)
    bar = tl.zeros([OUT, WIDTH], tl.float32)
    for i in range(span):
        chunk = group * span + i
        rows, tile = chunk * CHUNK * WIDTH + place(WIDTH, CHUNK, WIDTH), chunk * CHUNK * OUT + place(CHUNK, OUT, CHUNK)
        bar = added(bar, tl.load(outputs_bar + tile), tl.load(queries + rows), PRECISION)
        if ERRORS != "given":
            bar = added(bar, tl.load(answers_bar + tile), tl.load(keys + rows), PRECISION)
    tl.store(anchors_bar + group * OUT * WIDTH + place(WIDTH, OUT, WIDTH), bar)
