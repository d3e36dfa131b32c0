"""What is left when the adjoints of every chunk's end are known, all chunks side by side."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.heads import through_last_error
from lockstep.kernels.memory.tiles import added, place, product, turned


@triton.jit
def settle_kernel(
    keys: tl.tensor,  # [rows, time, WIDTH]
    values: tl.tensor,
    threshold: tl.tensor,  # [rows, time]
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    end_written: tl.tensor,  # [rows, time]
    end_velocity_written: tl.tensor,
    anchors: tl.tensor,
    copies: tl.tensor,  # [rows, chunks, 2 or 4, …]
    inputs: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]
    first_errors: tl.tensor,
    last_errors: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]
    normals: tl.tensor,
    scales: tl.tensor,  # [rows, time]
    errors_bar: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]: of the last errors; out: of the last outputs
    hidden_bar: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]
    copies_bar: tl.tensor,  # [rows, chunks, 2 or 4, …]
    keys_bar: tl.tensor,  # [rows, time, WIDTH]: by reads; out: all of it
    values_bar: tl.tensor,
    threshold_bar: tl.tensor,  # [rows, time]
    gain_bar: tl.tensor,  # [rows, chunks, WIDTH]
    shift_bar: tl.tensor,
    end_kept_bar: tl.tensor,  # [rows, chunks]
    end_carried_bar: tl.tensor,
    end_written_bar: tl.tensor,  # [rows, time]
    end_velocity_kept_bar: tl.tensor,  # [rows, chunks]
    end_velocity_written_bar: tl.tensor,  # [rows, time]
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
    """One program is one chunk of one row: the adjoints of its keys, values and of its last coefficients."""
    chunk = tl.program_id(0).to(tl.int64)
    row = chunk // chunks
    low = keys.dtype.element_ty
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    SIZE: tl.constexpr = WIDTH * HIDDEN
    PARTS: tl.constexpr = 4 if MOMENTUM else 2
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    token = chunk * CHUNK
    here = chunk * CHUNK * WIDTH
    copies += chunk * PARTS * SIZE
    copies_bar += chunk * PARTS * SIZE
    if ANCHOR:
        anchors += (row % anchor_rows) * 2 * SIZE
    wide = tl.arange(0, WIDTH)

    # Through the last error.
    key = tl.load(keys + here + turned(WIDTH, CHUNK, WIDTH))
    value = tl.load(values + here + turned(WIDTH, CHUNK, WIDTH)).to(tl.float32)
    normal = tl.load(normals + here + place(CHUNK, WIDTH, CHUNK)).to(tl.float32)
    scale = tl.load(scales + token + tl.arange(0, CHUNK))[None, :]
    limit = tl.load(threshold + token + tl.arange(0, CHUNK))[None, :] if HUBER else 0.0
    g = tl.load(gain + (row % heads) * WIDTH + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + (row % heads) * WIDTH + wide)[:, None] if NORM else 0.0
    error_bar = tl.load(errors_bar + here + place(CHUNK, WIDTH, CHUNK)).to(tl.float32)
    output_bar, loss_bar, gains_bar, limits_bar = through_last_error(
        error_bar, normal, scale, key.to(tl.float32), value, g, s, limit, NORM, RESIDUAL, BIAS, P, 0
    )
    tl.store(errors_bar + here + place(CHUNK, WIDTH, CHUNK), output_bar.to(low))
    tl.store(values_bar + here + turned(WIDTH, CHUNK, WIDTH), (-loss_bar).to(low))
    if NORM:
        tl.store(gain_bar + chunk * WIDTH + wide, tl.sum(gains_bar, axis=1))
        tl.store(shift_bar + chunk * WIDTH + wide, tl.sum(loss_bar, axis=1))
    if HUBER:
        tl.store(threshold_bar + token + tl.arange(0, CHUNK), tl.sum(limits_bar, axis=0))

    # Keys; how much was written; and how much was kept and carried on.
    key_bar = tl.load(keys_bar + here + turned(WIDTH, CHUNK, WIDTH)).to(tl.float32)
    if RESIDUAL:
        key_bar += loss_bar
    write = tl.load(end_written + token + tl.arange(0, CHUNK))[None, :]
    write_bar = tl.zeros([CHUNK], tl.float32)
    last_error = tl.load(last_errors + here + place(CHUNK, WIDTH, CHUNK))
    keep_bar = 0.0
    if MOMENTUM:
        faster = tl.load(end_velocity_written + token + tl.arange(0, CHUNK))[None, :]
        faster_bar = tl.zeros([CHUNK], tl.float32)
        carry_bar, velocity_keep_bar = 0.0, 0.0
    for part in range(SPLIT):
        deep = (chunk * HIDDEN + part * BLOCK) * CHUNK
        mine, mine_2 = part * BLOCK * WIDTH, SIZE + part * BLOCK
        tile = place(CHUNK, BLOCK, CHUNK)
        weights = tl.load(copies + mine + turned(WIDTH, BLOCK, WIDTH))
        if ANCHOR:
            weights = (weights.to(tl.float32) + tl.load(anchors + mine + turned(WIDTH, BLOCK, WIDTH))).to(low)
        key_bar = added(key_bar, weights, tl.load(hidden_bar + deep + tile), PRECISION)
        x, error = tl.load(inputs + deep + tile), tl.load(first_errors + deep + tile).to(tl.float32)
        first, second = (
            tl.load(copies_bar + mine + place(WIDTH, BLOCK, WIDTH)),
            tl.load(copies_bar + mine_2 + place(HIDDEN, WIDTH, BLOCK)),
        )
        key_bar = added(
            key_bar, tl.load(copies_bar + mine + turned(WIDTH, BLOCK, WIDTH)), (error * -write).to(low), PRECISION
        )
        write_bar -= tl.sum(product(first, key, PRECISION) * error, axis=0)
        write_bar -= tl.sum(product(second, x, PRECISION) * last_error, axis=0)
        copy, copy_2 = (
            tl.load(copies + mine + place(WIDTH, BLOCK, WIDTH)),
            tl.load(copies + mine_2 + place(HIDDEN, WIDTH, BLOCK)),
        )
        keep_bar += tl.sum(first.to(tl.float32) * copy) + tl.sum(second.to(tl.float32) * copy_2)
        if MOMENTUM:
            copy, copy_2 = (
                tl.load(copies + 2 * SIZE + mine + place(WIDTH, BLOCK, WIDTH)),
                tl.load(copies + 2 * SIZE + mine_2 + place(HIDDEN, WIDTH, BLOCK)),
            )
            carry_bar += tl.sum(first.to(tl.float32) * copy) + tl.sum(second.to(tl.float32) * copy_2)
            first = tl.load(copies_bar + 2 * SIZE + mine + place(WIDTH, BLOCK, WIDTH))
            second = tl.load(copies_bar + 2 * SIZE + mine_2 + place(HIDDEN, WIDTH, BLOCK))
            velocity_keep_bar += tl.sum(first.to(tl.float32) * copy) + tl.sum(second.to(tl.float32) * copy_2)
            moved = (error * -faster).to(low)
            key_bar = added(
                key_bar, tl.load(copies_bar + 2 * SIZE + mine + turned(WIDTH, BLOCK, WIDTH)), moved, PRECISION
            )
            faster_bar -= tl.sum(product(first, key, PRECISION) * error, axis=0)
            faster_bar -= tl.sum(product(second, x, PRECISION) * last_error, axis=0)
    tl.store(keys_bar + here + turned(WIDTH, CHUNK, WIDTH), key_bar.to(low))
    tl.store(end_written_bar + token + tl.arange(0, CHUNK), write_bar)
    tl.store(end_kept_bar + chunk, keep_bar)
    if MOMENTUM:
        tl.store(end_velocity_written_bar + token + tl.arange(0, CHUNK), faster_bar)
        tl.store(end_carried_bar + chunk, carry_bar)
        tl.store(end_velocity_kept_bar + chunk, velocity_keep_bar)


@triton.jit
def anchor_kernel(
    queries: tl.tensor,  # [rows, time, WIDTH]
    keys: tl.tensor,
    inputs: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]
    last_errors: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]
    read_inputs: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]
    read_outputs_bar: tl.tensor,
    read_last_bar: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]
    returned_bar: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]
    outputs_bar: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]
    hidden_bar: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]
    anchors_bar: tl.tensor,  # [groups, 2, …] in 32 bits
    span: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Adjoints of the anchor by `span` chunks, of one block of hidden units: by gradients at their starts, and by reads."""
    group, part = tl.program_id(0).to(tl.int64) // SPLIT, tl.program_id(0) % SPLIT
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    SIZE: tl.constexpr = WIDTH * HIDDEN
    tile, narrow = place(CHUNK, BLOCK, CHUNK), place(CHUNK, WIDTH, CHUNK)
    first = tl.zeros([BLOCK, WIDTH], tl.float32)
    second = tl.zeros([WIDTH, BLOCK], tl.float32)
    for i in range(span):
        here = (group * span + i) * CHUNK * WIDTH
        deep = ((group * span + i) * HIDDEN + part * BLOCK) * CHUNK
        rows = here + place(WIDTH, CHUNK, WIDTH)
        first = added(first, tl.load(hidden_bar + deep + tile), tl.load(keys + rows), PRECISION)
        first = added(first, tl.load(read_outputs_bar + deep + tile), tl.load(queries + rows), PRECISION)
        units = deep + turned(CHUNK, BLOCK, CHUNK)
        second = added(second, tl.load(outputs_bar + here + narrow), tl.load(inputs + units), PRECISION)
        second = added(second, tl.load(last_errors + here + narrow), tl.load(returned_bar + units), PRECISION)
        second = added(second, tl.load(read_last_bar + here + narrow), tl.load(read_inputs + units), PRECISION)
    anchors_bar += group * 2 * SIZE
    tl.store(anchors_bar + part * BLOCK * WIDTH + place(WIDTH, BLOCK, WIDTH), first)
    tl.store(anchors_bar + SIZE + part * BLOCK + place(HIDDEN, WIDTH, BLOCK), second)
