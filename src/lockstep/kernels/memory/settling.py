"""What is left when the adjoints of every chunk's end are known, all chunks side by side."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.heads import through_last_error
from lockstep.kernels.memory.tiles import added, place, product


@triton.jit
def settle_kernel(
    keys: tl.tensor_descriptor,  # [rows × time, WIDTH]
    values: tl.tensor_descriptor,
    threshold: tl.tensor,  # [rows, time]
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    end_written: tl.tensor,  # [rows, time]
    end_velocity_written: tl.tensor,
    anchors: tl.tensor_descriptor,  # [heads or rows × 2 × WIDTH, HIDDEN]
    copies: tl.tensor_descriptor,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    inputs: tl.tensor_descriptor,  # [rows × time, HIDDEN]
    first_errors: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × time, WIDTH]
    normals: tl.tensor_descriptor,
    scales: tl.tensor,  # [rows, time]
    errors_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]: of the last errors; out: of the last outputs
    hidden_bar: tl.tensor_descriptor,  # [rows × time, HIDDEN]
    copies_bar: tl.tensor_descriptor,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    keys_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]: by reads; out: all of it
    values_bar: tl.tensor_descriptor,
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
    chunk = tl.program_id(0)
    row = chunk // chunks
    low = keys.dtype
    PARTS: tl.constexpr = 4 if MOMENTUM else 2
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    here, copy, anchor = chunk * CHUNK, chunk * PARTS * WIDTH, (row % anchor_rows) * 2 * WIDTH
    token, wide = here + tl.arange(0, CHUNK), tl.arange(0, WIDTH)

    # Through the last error.
    key = keys.load([here, 0])
    value = values.load([here, 0]).to(tl.float32)
    normal, scale = normals.load([here, 0]).to(tl.float32), tl.load(scales + token)[:, None]
    limit = tl.load(threshold + token)[:, None] if HUBER else 0.0
    g = tl.load(gain + (row % heads) * WIDTH + wide)[None, :] if NORM else 1.0
    s = tl.load(shift + (row % heads) * WIDTH + wide)[None, :] if NORM else 0.0
    error_bar = errors_bar.load([here, 0]).to(tl.float32)
    output_bar, loss_bar, gains_bar, limits_bar = through_last_error(
        error_bar, normal, scale, key.to(tl.float32), value, g, s, limit, NORM, RESIDUAL, BIAS, P, 1
    )
    errors_bar.store([here, 0], output_bar.to(low))
    values_bar.store([here, 0], (-loss_bar).to(low))
    if NORM:
        tl.store(gain_bar + chunk * WIDTH + wide, tl.sum(gains_bar, axis=0))
        tl.store(shift_bar + chunk * WIDTH + wide, tl.sum(loss_bar, axis=0))
    if HUBER:
        tl.store(threshold_bar + token, tl.sum(limits_bar, axis=1))

    # Keys; how much was written; and how much was kept and carried on.
    key_bar = keys_bar.load([here, 0]).to(tl.float32)
    if RESIDUAL:
        key_bar += loss_bar
    write = tl.load(end_written + token)[:, None]
    write_bar = tl.zeros([CHUNK], tl.float32)
    last_error = last_errors.load([here, 0])
    # Sums over a whole matrix are left as sums of its columns until the end.
    keep_bar = tl.zeros([BLOCK], tl.float32)
    if MOMENTUM:
        faster = tl.load(end_velocity_written + token)[:, None]
        faster_bar = tl.zeros([CHUNK], tl.float32)
        carry_bar = tl.zeros([BLOCK], tl.float32)
        velocity_keep_bar = tl.zeros([BLOCK], tl.float32)
    for part in range(SPLIT):
        unit = part * BLOCK
        held, hidden = copies.load([copy, unit]), hidden_bar.load([here, unit])
        key_bar = added(key_bar, hidden, tl.trans(held), PRECISION)
        if ANCHOR:
            key_bar = added(key_bar, hidden, tl.trans(anchors.load([anchor, unit])), PRECISION)
        x, error = inputs.load([here, unit]), first_errors.load([here, unit]).to(tl.float32)
        first, second = copies_bar.load([copy, unit]), copies_bar.load([copy + WIDTH, unit])
        key_bar = added(key_bar, (error * -write).to(low), tl.trans(first), PRECISION)
        write_bar -= tl.sum(product(key, first, PRECISION) * error, axis=1)
        write_bar -= tl.sum(product(x, tl.trans(second), PRECISION) * last_error, axis=1)
        held_2 = copies.load([copy + WIDTH, unit])
        keep_bar += tl.sum(first.to(tl.float32) * held + second.to(tl.float32) * held_2, axis=0)
        if MOMENTUM:
            held, held_2 = copies.load([copy + 2 * WIDTH, unit]), copies.load([copy + 3 * WIDTH, unit])
            carry_bar += tl.sum(first.to(tl.float32) * held + second.to(tl.float32) * held_2, axis=0)
            first, second = copies_bar.load([copy + 2 * WIDTH, unit]), copies_bar.load([copy + 3 * WIDTH, unit])
            velocity_keep_bar += tl.sum(first.to(tl.float32) * held + second.to(tl.float32) * held_2, axis=0)
            key_bar = added(key_bar, (error * -faster).to(low), tl.trans(first), PRECISION)
            faster_bar -= tl.sum(product(key, first, PRECISION) * error, axis=1)
            faster_bar -= tl.sum(product(x, tl.trans(second), PRECISION) * last_error, axis=1)
    keys_bar.store([here, 0], key_bar.to(low))
    tl.store(end_written_bar + token, write_bar)
    tl.store(end_kept_bar + chunk, tl.sum(keep_bar))
    if MOMENTUM:
        tl.store(end_velocity_written_bar + token, faster_bar)
        tl.store(end_carried_bar + chunk, tl.sum(carry_bar))
        tl.store(end_velocity_kept_bar + chunk, tl.sum(velocity_keep_bar))


@triton.jit
def anchor_kernel(
    queries: tl.tensor_descriptor,  # [rows × time, WIDTH]
    keys: tl.tensor_descriptor,
    inputs: tl.tensor_descriptor,  # [rows × time, HIDDEN]
    last_errors: tl.tensor_descriptor,  # [rows × time, WIDTH]
    read_inputs: tl.tensor_descriptor,  # [rows × time, HIDDEN]
    read_outputs_bar: tl.tensor_descriptor,
    read_last_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]
    returned_bar: tl.tensor_descriptor,  # [rows × time, HIDDEN]
    outputs_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]
    hidden_bar: tl.tensor_descriptor,  # [rows × time, HIDDEN]
    anchors_bar: tl.tensor,  # [groups, 2, WIDTH, HIDDEN] in 32 bits
    span: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Adjoints of the anchor by `span` chunks, of one block of units: by gradients at their starts, and by reads."""
    group, part = tl.program_id(0) // SPLIT, tl.program_id(0) % SPLIT
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    SIZE: tl.constexpr = WIDTH * HIDDEN
    unit = part * BLOCK
    first = tl.zeros([WIDTH, BLOCK], tl.float32)
    second = tl.zeros([WIDTH, BLOCK], tl.float32)
    for i in range(span):
        here = (group * span + i) * CHUNK
        first = added(first, tl.trans(keys.load([here, 0])), hidden_bar.load([here, unit]), PRECISION)
        first = added(first, tl.trans(queries.load([here, 0])), read_outputs_bar.load([here, unit]), PRECISION)
        second = added(second, tl.trans(outputs_bar.load([here, 0])), inputs.load([here, unit]), PRECISION)
        second = added(second, tl.trans(last_errors.load([here, 0])), returned_bar.load([here, unit]), PRECISION)
        second = added(second, tl.trans(read_last_bar.load([here, 0])), read_inputs.load([here, unit]), PRECISION)
    anchors_bar += group.to(tl.int64) * 2 * SIZE + unit + place(HIDDEN, WIDTH, BLOCK)
    tl.store(anchors_bar, first)
    tl.store(anchors_bar + SIZE, second)
