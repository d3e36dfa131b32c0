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
    anchor: tl.tensor_descriptor,  # [heads or rows × HIDDEN, WIDTH]
    firsts: tl.tensor_descriptor,  # [rows × chunks × kinds × HIDDEN, WIDTH]
    seconds: tl.tensor_descriptor,  # [rows × chunks × kinds × WIDTH, HIDDEN]
    inputs: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]
    first_errors: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]
    normals: tl.tensor_descriptor,
    scales: tl.tensor,  # [rows, time]
    errors_bar: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]: of the last errors; out: of the last outputs
    hidden_bar: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]
    firsts_bar: tl.tensor_descriptor,  # [rows × chunks × kinds × HIDDEN, WIDTH]
    seconds_bar: tl.tensor_descriptor,  # [rows × chunks × kinds × WIDTH, HIDDEN]
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
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    KINDS: tl.constexpr = 2 if MOMENTUM else 1
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    wide = tl.arange(0, WIDTH)

    # Through the last error.
    key = tl.trans(keys.load([chunk * CHUNK, 0]))
    value = tl.trans(values.load([chunk * CHUNK, 0])).to(tl.float32)
    normal = normals.load([chunk * WIDTH, 0]).to(tl.float32)
    scale = tl.load(scales + token)[None, :]
    limit = tl.load(threshold + token)[None, :] if HUBER else 0.0
    g = tl.load(gain + (row % heads) * WIDTH + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + (row % heads) * WIDTH + wide)[:, None] if NORM else 0.0
    error_bar = errors_bar.load([chunk * WIDTH, 0]).to(tl.float32)
    output_bar, loss_bar, gains_bar, limits_bar = through_last_error(
        error_bar, normal, scale, key.to(tl.float32), value, g, s, limit, NORM, RESIDUAL, BIAS, P, 0
    )
    errors_bar.store([chunk * WIDTH, 0], output_bar.to(low))
    values_bar.store([chunk * CHUNK, 0], tl.trans((-loss_bar).to(low)))
    if NORM:
        tl.store(gain_bar + chunk * WIDTH + wide, tl.sum(gains_bar, axis=1))
        tl.store(shift_bar + chunk * WIDTH + wide, tl.sum(loss_bar, axis=1))
    if HUBER:
        tl.store(threshold_bar + token, tl.sum(limits_bar, axis=0))

    # Keys; how much was written; and how much was kept and carried on.
    key_bar = tl.trans(keys_bar.load([chunk * CHUNK, 0])).to(tl.float32)
    if RESIDUAL:
        key_bar += loss_bar
    write = tl.load(end_written + token)[None, :]
    write_bar = tl.zeros([CHUNK], tl.float32)
    last_error = last_errors.load([chunk * WIDTH, 0])
    keep_bar = 0.0
    if MOMENTUM:
        faster = tl.load(end_velocity_written + token)[None, :]
        faster_bar = tl.zeros([CHUNK], tl.float32)
        carry_bar, velocity_keep_bar = 0.0, 0.0
    for part in range(SPLIT):
        unit, deep = part * BLOCK, chunk * HIDDEN + part * BLOCK
        first_at, second_at = chunk * KINDS * HIDDEN + unit, chunk * KINDS * WIDTH
        copy, hidden = firsts.load([first_at, 0]), hidden_bar.load([deep, 0])
        key_bar = added(key_bar, tl.trans(copy), hidden, PRECISION)
        if ANCHOR:
            returning = tl.trans(anchor.load([(row % anchor_rows) * HIDDEN + unit, 0]))
            key_bar = added(key_bar, returning, hidden, PRECISION)
        x, error = inputs.load([deep, 0]), first_errors.load([deep, 0]).to(tl.float32)
        first, second = firsts_bar.load([first_at, 0]), seconds_bar.load([second_at, unit])
        key_bar = added(key_bar, tl.trans(first), (error * -write).to(low), PRECISION)
        write_bar -= tl.sum(product(first, key, PRECISION) * error, axis=0)
        write_bar -= tl.sum(product(second, x, PRECISION) * last_error, axis=0)
        copy_2 = seconds.load([second_at, unit])
        keep_bar += tl.sum(first.to(tl.float32) * copy) + tl.sum(second.to(tl.float32) * copy_2)
        if MOMENTUM:
            copy, copy_2 = firsts.load([first_at + HIDDEN, 0]), seconds.load([second_at + WIDTH, unit])
            carry_bar += tl.sum(first.to(tl.float32) * copy) + tl.sum(second.to(tl.float32) * copy_2)
            first, second = firsts_bar.load([first_at + HIDDEN, 0]), seconds_bar.load([second_at + WIDTH, unit])
            velocity_keep_bar += tl.sum(first.to(tl.float32) * copy) + tl.sum(second.to(tl.float32) * copy_2)
            key_bar = added(key_bar, tl.trans(first), (error * -faster).to(low), PRECISION)
            faster_bar -= tl.sum(product(first, key, PRECISION) * error, axis=0)
            faster_bar -= tl.sum(product(second, x, PRECISION) * last_error, axis=0)
    keys_bar.store([chunk * CHUNK, 0], tl.trans(key_bar.to(low)))
    tl.store(end_written_bar + token, write_bar)
    tl.store(end_kept_bar + chunk, keep_bar)
    if MOMENTUM:
        tl.store(end_velocity_written_bar + token, faster_bar)
        tl.store(end_carried_bar + chunk, carry_bar)
        tl.store(end_velocity_kept_bar + chunk, velocity_keep_bar)


@triton.jit
def anchor_kernel(
    queries: tl.tensor_descriptor,  # [rows × time, WIDTH]
    keys: tl.tensor_descriptor,
    inputs: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]
    last_errors: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]
    read_inputs: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]
    read_outputs_bar: tl.tensor_descriptor,
    read_last_bar: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]
    returned_bar: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]
    outputs_bar: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]
    hidden_bar: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]
    anchors_bar: tl.tensor,  # [groups, 2, …] in 32 bits
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
    first = tl.zeros([BLOCK, WIDTH], tl.float32)
    second = tl.zeros([WIDTH, BLOCK], tl.float32)
    for i in range(span):
        chunk = group * span + i
        deep = chunk * HIDDEN + unit
        first = added(first, hidden_bar.load([deep, 0]), keys.load([chunk * CHUNK, 0]), PRECISION)
        first = added(first, read_outputs_bar.load([deep, 0]), queries.load([chunk * CHUNK, 0]), PRECISION)
        narrow = chunk * WIDTH
        second = added(second, outputs_bar.load([narrow, 0]), tl.trans(inputs.load([deep, 0])), PRECISION)
        second = added(second, last_errors.load([narrow, 0]), tl.trans(returned_bar.load([deep, 0])), PRECISION)
        second = added(second, read_last_bar.load([narrow, 0]), tl.trans(read_inputs.load([deep, 0])), PRECISION)
    anchors_bar += group.to(tl.int64) * 2 * SIZE
    tl.store(anchors_bar + unit * WIDTH + place(WIDTH, BLOCK, WIDTH), first)
    tl.store(anchors_bar + SIZE + unit + place(HIDDEN, WIDTH, BLOCK), second)
