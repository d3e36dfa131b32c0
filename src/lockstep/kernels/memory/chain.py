"""The memory's way from chunk to chunk and its adjoints' way back: all that must wait for the chunk before.

SPLIT programs walk one row, each with BLOCK of the hidden units; once a chunk they add up what the second matrix says.
Both matrices are held as [WIDTH, BLOCK], the second turned, and as their distance from the anchor, where there is one.
So are velocities and adjoints. Only weights stay in registers: velocities come from memory and go back there once a
chunk, in 32 bits, because what has no room would go there anyway, and more often.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.activations import activate, slope_of
from lockstep.kernels.memory.heads import last_error, normalised, through_last_error
from lockstep.kernels.memory.tiles import added, place, product


@triton.jit
def summed(
    partial: tl.tensor,
    exchange: tl.tensor,
    arrived: tl.tensor,
    part: tl.tensor,
    turn: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr,
) -> tl.tensor:
    """The sum of a tile over the programs of a row, in one order for all; `turn` counts the sums from zero.

    exchange [2, SPLIT, ROWS, COLUMNS] in 32 bits: two rooms in turn, so that nobody overwrites what is being read.
    Programs of a row are neighbours, and are started in order: none waits for one that cannot start. A row's only
    program goes through memory too: what comes from there may be turned and multiplied, what a product gave may not.
    """
    tile = place(COLUMNS, ROWS, COLUMNS)
    exchange += (turn % 2) * SPLIT * ROWS * COLUMNS
    tl.store(exchange + part * ROWS * COLUMNS + tile, partial, cache_modifier=".cg")
    tl.debug_barrier()
    if SPLIT > 1:
        tl.atomic_add(arrived, 1, sem="release")
        while tl.atomic_add(arrived, 0, sem="acquire") < SPLIT * (turn + 1):
            pass
        tl.debug_barrier()
    total = tl.load(exchange + tile, cache_modifier=".cg")
    for other in tl.static_range(1, SPLIT):
        total += tl.load(exchange + other * ROWS * COLUMNS + tile, cache_modifier=".cg")
    return total


@triton.jit
def chain_kernel(
    keys: tl.tensor_descriptor,  # [rows × time, WIDTH]
    values: tl.tensor_descriptor,
    threshold: tl.tensor,  # [rows, time]
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    end_written: tl.tensor,
    velocity_kept: tl.tensor,
    end_velocity_written: tl.tensor,
    anchors: tl.tensor_descriptor,  # [heads or rows × 2 × WIDTH, HIDDEN]
    held: tl.tensor,  # [rows, 2 or 4, WIDTH, HIDDEN] in 32 bits: weights, then velocities; replaced by the last ones
    copies: tl.tensor_descriptor,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]: what was held at each chunk's start
    inputs: tl.tensor_descriptor,  # [rows × time, HIDDEN]: what was written, for the reads
    first_errors: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × time, WIDTH]
    exchange: tl.tensor,  # [rows, 2, SPLIT, CHUNK, WIDTH] in 32 bits
    arrived: tl.tensor,  # [rows], zeros
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
    row, part = tl.program_id(0) // SPLIT, tl.program_id(0) % SPLIT
    low = keys.dtype
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    SIZE: tl.constexpr = WIDTH * HIDDEN
    PARTS: tl.constexpr = 4 if MOMENTUM else 2
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    unit, matrix = part * BLOCK, place(HIDDEN, WIDTH, BLOCK)
    held += row.to(tl.int64) * PARTS * SIZE + unit
    exchange += row.to(tl.int64) * 2 * SPLIT * WIDTH * CHUNK
    anchor = (row % anchor_rows) * 2 * WIDTH
    first, second = tl.load(held + matrix), tl.load(held + SIZE + matrix)
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    for i in range(chunks):
        chunk = row * chunks + i
        here, copy = chunk * CHUNK, chunk * PARTS * WIDTH
        token, end = here + tl.arange(0, CHUNK), here + CHUNK - 1
        low_second = second.to(low)
        copies.store([copy, unit], first.to(low))
        copies.store([copy + WIDTH, unit], low_second)

        # What is written.
        key = keys.load([here, 0])
        z = product(key, first.to(low), PRECISION)
        if ANCHOR:
            z = added(z, key, anchors.load([anchor, unit]), PRECISION)
        x = activate(z, ACTIVATION).to(low)
        low_z = z.to(low)
        inputs.store([here, unit], x)
        output = product(x, tl.trans(low_second), PRECISION)
        if ANCHOR:
            output = added(output, x, tl.trans(anchors.load([anchor + WIDTH, unit])), PRECISION)
        output = summed(output, exchange, arrived + row, part, i, CHUNK, WIDTH, SPLIT)
        normal, scale = normalised(output, NORM, 1)
        value = values.load([here, 0]).to(tl.float32)
        limit = tl.load(threshold + token)[:, None] if HUBER else 0.0
        g = tl.load(gain + wide)[None, :] if NORM else 1.0
        s = tl.load(shift + wide)[None, :] if NORM else 0.0
        error = last_error(normal, scale, key.to(tl.float32), value, g, s, limit, NORM, RESIDUAL, BIAS, P, 1)
        low_error = error.to(low)
        if part == 0:
            last_errors.store([here, 0], low_error)
        returned = product(low_error, low_second, PRECISION)
        if ANCHOR:
            returned = added(returned, low_error, anchors.load([anchor + WIDTH, unit]), PRECISION)
        error_1 = returned * slope_of(low_z.to(tl.float32), ACTIVATION)
        first_errors.store([here, unit], error_1.to(low))

        # Where that leads.
        write, keep = tl.load(end_written + token)[:, None], tl.load(kept + end)
        if MOMENTUM:
            carry, velocity_keep = tl.load(carried + end), tl.load(velocity_kept + end)
            faster = tl.load(end_velocity_written + token)[:, None]
            velocity = tl.load(held + 2 * SIZE + matrix)
            copies.store([copy + 2 * WIDTH, unit], velocity.to(low))
            first = first * keep + velocity * carry
            velocity = added(velocity * velocity_keep, tl.trans(key), (error_1 * -faster).to(low), PRECISION)
            tl.store(held + 2 * SIZE + matrix, velocity)
            velocity = tl.load(held + 3 * SIZE + matrix)
            copies.store([copy + 3 * WIDTH, unit], velocity.to(low))
            second = second * keep + velocity * carry
            velocity = added(velocity * velocity_keep, tl.trans((error * -faster).to(low)), x, PRECISION)
            tl.store(held + 3 * SIZE + matrix, velocity)
        else:
            first, second = first * keep, second * keep
        first = added(first, tl.trans(key), (error_1 * -write).to(low), PRECISION)
        second = added(second, tl.trans((error * -write).to(low)), x, PRECISION)
    tl.store(held + matrix, first)
    tl.store(held + SIZE + matrix, second)


@triton.jit
def chain_backward_kernel(
    queries: tl.tensor_descriptor,  # [rows × time, WIDTH]
    keys: tl.tensor_descriptor,
    values: tl.tensor_descriptor,
    threshold: tl.tensor,  # [rows, time]
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    end_written: tl.tensor,
    velocity_kept: tl.tensor,
    end_velocity_written: tl.tensor,
    anchors: tl.tensor_descriptor,  # [heads or rows × 2 × WIDTH, HIDDEN]
    copies: tl.tensor_descriptor,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    inputs: tl.tensor_descriptor,  # [rows × time, HIDDEN]: what was written, and the activations' derivatives
    slopes: tl.tensor_descriptor,
    bends: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × time, WIDTH]
    normals: tl.tensor_descriptor,
    scales: tl.tensor,  # [rows, time]
    read_inputs: tl.tensor_descriptor,  # [rows × time, HIDDEN]: what was read, and the adjoints of that
    read_outputs_bar: tl.tensor_descriptor,
    read_last_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]
    returned_bar: tl.tensor_descriptor,  # [rows × time, HIDDEN]: of the first errors, by reads; out: before the slope
    last_errors_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]: of the last errors, by reads
    hidden_bar: tl.tensor_descriptor,  # [rows × time, HIDDEN]: of the inputs, by reads; out: before the activation
    errors_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]; out: of the last errors, all of it
    copies_bar: tl.tensor_descriptor,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]; out: of what each chunk ended with
    held_bar: tl.tensor,  # [rows, 2 or 4, WIDTH, HIDDEN]: of what was held last; out: of what was held first
    exchange: tl.tensor,  # [rows, 2, SPLIT, CHUNK, WIDTH] in 32 bits
    arrived: tl.tensor,  # [rows], zeros
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
    """What needs no other chunk is done before and after, chunks side by side (`reading`, `settling`)."""
    row, part = tl.program_id(0) // SPLIT, tl.program_id(0) % SPLIT
    low = keys.dtype
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    SIZE: tl.constexpr = WIDTH * HIDDEN
    PARTS: tl.constexpr = 4 if MOMENTUM else 2
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    unit, matrix = part * BLOCK, place(HIDDEN, WIDTH, BLOCK)
    held_bar += row.to(tl.int64) * PARTS * SIZE + unit
    exchange += row.to(tl.int64) * 2 * SPLIT * WIDTH * CHUNK
    anchor_2 = (row % anchor_rows) * 2 * WIDTH + WIDTH
    first, second = tl.load(held_bar + matrix), tl.load(held_bar + SIZE + matrix)
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    for back in range(chunks):
        chunk = row * chunks + chunks - 1 - back
        here, copy = chunk * CHUNK, chunk * PARTS * WIDTH
        token, end = here + tl.arange(0, CHUNK), here + CHUNK - 1
        write = tl.load(end_written + token)[:, None]

        # Through the step of the first matrix, and before the slope of its errors.
        key = keys.load([here, 0])
        low_matrix = first.to(low)
        copies_bar.store([copy, unit], low_matrix)
        bar = product(key, low_matrix, PRECISION) * -write
        if MOMENTUM:
            faster = tl.load(end_velocity_written + token)[:, None]
            low_matrix = tl.load(held_bar + 2 * SIZE + matrix).to(low)
            copies_bar.store([copy + 2 * WIDTH, unit], low_matrix)
            bar -= product(key, low_matrix, PRECISION) * faster
        bar += returned_bar.load([here, unit])
        bent = (bar * bends.load([here, unit])).to(low)
        u_bar = (bar * slopes.load([here, unit])).to(low)
        returned_bar.store([here, unit], u_bar)

        # Through that of the second.
        x = inputs.load([here, unit])
        low_second = second.to(low)
        copies_bar.store([copy + WIDTH, unit], low_second)
        error_bar = product(x, tl.trans(low_second), PRECISION) * -write
        if MOMENTUM:
            low_matrix = tl.load(held_bar + 3 * SIZE + matrix).to(low)
            copies_bar.store([copy + 3 * WIDTH, unit], low_matrix)
            error_bar -= product(x, tl.trans(low_matrix), PRECISION) * faster

        # Through the last errors, taken at the chunk's start.
        error_bar = added(error_bar, u_bar, tl.trans(copies.load([copy + WIDTH, unit])), PRECISION)
        if ANCHOR:
            error_bar = added(error_bar, u_bar, tl.trans(anchors.load([anchor_2, unit])), PRECISION)
        error_bar = summed(error_bar, exchange, arrived + row, part, back, CHUNK, WIDTH, SPLIT)
        error_bar += last_errors_bar.load([here, 0])
        if part == 0:
            errors_bar.store([here, 0], error_bar.to(low))
        normal, scale = normals.load([here, 0]).to(tl.float32), tl.load(scales + token)[:, None]
        value = values.load([here, 0]).to(tl.float32)
        limit = tl.load(threshold + token)[:, None] if HUBER else 0.0
        g = tl.load(gain + wide)[None, :] if NORM else 1.0
        s = tl.load(shift + wide)[None, :] if NORM else 0.0
        output_bar, _, _, _ = through_last_error(
            error_bar,
            normal,
            scale,
            keys.load([here, 0]).to(tl.float32),
            value,
            g,
            s,
            limit,
            NORM,
            RESIDUAL,
            BIAS,
            P,
            1,
        )
        low_output_bar = output_bar.to(low)

        # Before the activation.
        error = last_errors.load([here, 0]).to(tl.float32)
        x_bar = hidden_bar.load([here, unit]).to(tl.float32)
        x_bar = added(x_bar, (error * -write).to(low), low_second, PRECISION)
        if MOMENTUM:
            low_matrix = tl.load(held_bar + 3 * SIZE + matrix).to(low)
            x_bar = added(x_bar, (error * -faster).to(low), low_matrix, PRECISION)
        x_bar = added(x_bar, low_output_bar, copies.load([copy + WIDTH, unit]), PRECISION)
        if ANCHOR:
            x_bar = added(x_bar, low_output_bar, anchors.load([anchor_2, unit]), PRECISION)
        z_bar = (x_bar * slopes.load([here, unit]) + bent).to(low)
        hidden_bar.store([here, unit], z_bar)

        # The adjoints of what was held at the chunk's start.
        query = tl.trans(queries.load([here, 0])).to(tl.float32)
        last_bar = tl.trans(read_last_bar.load([here, 0])).to(tl.float32)
        read_bar, read = read_outputs_bar.load([here, unit]), read_inputs.load([here, unit])
        share, keep = tl.load(kept + token)[None, :], tl.load(kept + end)
        if MOMENTUM:
            carry_share, carry = tl.load(carried + token)[None, :], tl.load(carried + end)
            velocity_keep = tl.load(velocity_kept + end)
            velocity = first * carry + tl.load(held_bar + 2 * SIZE + matrix) * velocity_keep
            velocity = added(velocity, (query * carry_share).to(low), read_bar, PRECISION)
            tl.store(held_bar + 2 * SIZE + matrix, velocity)
            velocity = second * carry + tl.load(held_bar + 3 * SIZE + matrix) * velocity_keep
            velocity = added(velocity, (last_bar * carry_share).to(low), read, PRECISION)
            tl.store(held_bar + 3 * SIZE + matrix, velocity)
        first = added(first * keep, (query * share).to(low), read_bar, PRECISION)
        first = added(first, tl.trans(keys.load([here, 0])), z_bar, PRECISION)
        second = added(second * keep, (last_bar * share).to(low), read, PRECISION)
        second = added(second, tl.trans(low_output_bar), inputs.load([here, unit]), PRECISION)
        second = added(second, tl.trans(last_errors.load([here, 0])), u_bar, PRECISION)
    tl.store(held_bar + matrix, first)
    tl.store(held_bar + SIZE + matrix, second)
