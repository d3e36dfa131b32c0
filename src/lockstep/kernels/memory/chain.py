"""The memory's way from chunk to chunk and its adjoints' way back: all that must wait for the chunk before.

SPLIT programs walk one row, each with BLOCK of the hidden units; once a chunk they add up what the second matrix says.
Weights are held as their distance from the anchor, where there is one, and turned: the first matrix as [HIDDEN, WIDTH],
the second as [WIDTH, HIDDEN]. So are velocities and adjoints. Only weights stay in registers: velocities come from
memory and go back there once a chunk, in 32 bits, because what has no room would go there anyway, and more often.

A `Tile of` a tensor below is a descriptor; kinds are weights and, with momentum, velocities.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.activations import activate, slope_of
from lockstep.kernels.memory.heads import last_error, normalised, through_last_error
from lockstep.kernels.memory.tiles import added, place, product, turned


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
    program goes through memory too: what it loads is spread over all of its warps, where a narrow product is not.
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
    end_velocity_kept: tl.tensor,
    end_velocity_written: tl.tensor,
    anchor: tl.tensor_descriptor,  # [heads or rows × HIDDEN, WIDTH]
    anchor_2: tl.tensor_descriptor,  # [heads or rows × WIDTH, HIDDEN]
    held: tl.tensor,  # [rows, kinds, 2, …] in 32 bits; replaced by the last ones
    firsts: tl.tensor_descriptor,  # [rows × chunks × kinds × HIDDEN, WIDTH]: at the start of each chunk
    seconds: tl.tensor,  # [rows, chunks, kinds, WIDTH, HIDDEN]
    inputs: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]: what was written, for the reads
    first_errors: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]
    exchange: tl.tensor,  # [rows, 2, SPLIT, WIDTH, CHUNK] in 32 bits
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
    KINDS: tl.constexpr = 2 if MOMENTUM else 1
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    unit = part * BLOCK
    first_matrix, second_matrix = place(WIDTH, BLOCK, WIDTH), place(HIDDEN, WIDTH, BLOCK)
    held += row.to(tl.int64) * KINDS * 2 * SIZE
    exchange += row * 2 * SPLIT * WIDTH * CHUNK
    first = tl.load(held + unit * WIDTH + first_matrix)
    second = tl.load(held + SIZE + unit + second_matrix)
    velocities = held + 2 * SIZE + unit * WIDTH
    velocities_2 = held + 3 * SIZE + unit
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gain + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + wide)[:, None] if NORM else 0.0
    for i in range(chunks):
        chunk = row * chunks + i
        token, end = chunk * CHUNK + tl.arange(0, CHUNK), chunk * CHUNK + CHUNK - 1
        copy = seconds + chunk.to(tl.int64) * KINDS * SIZE + unit
        firsts.store([chunk * KINDS * HIDDEN + unit, 0], first.to(low))
        tl.store(copy + second_matrix, second.to(low))

        # What is written.
        key = tl.trans(keys.load([chunk * CHUNK, 0]))
        z = product(first.to(low), key, PRECISION)
        if ANCHOR:
            z = added(z, anchor.load([(row % anchor_rows) * HIDDEN + unit, 0]), key, PRECISION)
        x = activate(z, ACTIVATION).to(low)
        slope = slope_of(z, ACTIVATION).to(low)
        inputs.store([chunk * HIDDEN + unit, 0], x)
        output = product(second.to(low), x, PRECISION)
        if ANCHOR:
            output = added(output, anchor_2.load([(row % anchor_rows) * WIDTH, unit]), x, PRECISION)
        output = summed(output, exchange, arrived + row, part, i, WIDTH, CHUNK, SPLIT)
        normal, scale = normalised(output, NORM, 0)
        value = tl.trans(values.load([chunk * CHUNK, 0])).to(tl.float32)
        limit = tl.load(threshold + token)[None, :] if HUBER else 0.0
        error = last_error(normal, scale, key.to(tl.float32), value, g, s, limit, NORM, RESIDUAL, BIAS, P, 0)
        low_error = error.to(low)
        if part == 0:
            last_errors.store([chunk * WIDTH, 0], low_error)

        # Where that leads: the second matrix, and then the first, whose errors come back through the second.
        write = tl.load(end_written + token)[None, :]
        keep = tl.load(kept + end)
        second *= keep
        if MOMENTUM:
            carry = tl.load(carried + end)
            velocity_keep = tl.load(end_velocity_kept + end)
            faster = tl.load(end_velocity_written + token)[None, :]
            velocity = tl.load(velocities_2 + second_matrix)
            tl.store(copy + SIZE + second_matrix, velocity.to(low))
            second += velocity * carry
            velocity = added(velocity * velocity_keep, (error * -faster).to(low), tl.trans(x), PRECISION)
            tl.store(velocities_2 + second_matrix, velocity)
        second = added(second, (error * -write).to(low), tl.trans(x), PRECISION)
        tl.debug_barrier()
        # The second matrix as it was, turned back, by way of its copy.
        returned = product(tl.load(copy + turned(HIDDEN, WIDTH, BLOCK)), low_error, PRECISION)
        if ANCHOR:
            returning = tl.trans(anchor_2.load([(row % anchor_rows) * WIDTH, unit]))
            returned = added(returned, returning, low_error, PRECISION)
        error_1 = returned * slope
        first_errors.store([chunk * HIDDEN + unit, 0], error_1.to(low))
        first *= keep
        if MOMENTUM:
            velocity = tl.load(velocities + first_matrix)
            firsts.store([(chunk * KINDS + 1) * HIDDEN + unit, 0], velocity.to(low))
            first += velocity * carry
            velocity = added(velocity * velocity_keep, (error_1 * -faster).to(low), tl.trans(key), PRECISION)
            tl.store(velocities + first_matrix, velocity)
        first = added(first, (error_1 * -write).to(low), tl.trans(key), PRECISION)
    tl.store(held + unit * WIDTH + first_matrix, first)
    tl.store(held + SIZE + unit + second_matrix, second)


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
    end_velocity_kept: tl.tensor,
    end_velocity_written: tl.tensor,
    anchor_2: tl.tensor_descriptor,  # [heads or rows × WIDTH, HIDDEN]
    seconds: tl.tensor_descriptor,  # [rows × chunks × kinds × WIDTH, HIDDEN]
    inputs: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]: what was written, and the activations' derivatives
    slopes: tl.tensor_descriptor,
    bends: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]
    normals: tl.tensor_descriptor,
    scales: tl.tensor,  # [rows, time]
    read_inputs: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]: what was read, and the adjoints of that
    read_outputs_bar: tl.tensor_descriptor,
    read_last_bar: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]
    returned_bar: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]: of the first errors; out: before the slope
    last_errors_bar: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]: of the last errors, by reads
    hidden_bar: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]: of the inputs; out: before the activation
    errors_bar: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]; out: of the last errors, all of it
    firsts_bar: tl.tensor_descriptor,  # [rows × chunks × kinds × HIDDEN, WIDTH]; out: of what each chunk ended with
    seconds_bar: tl.tensor,  # [rows, chunks, kinds, WIDTH, HIDDEN]
    held_bar: tl.tensor,  # [rows, kinds, 2, …]: of what was held last; out: of what was held first
    exchange: tl.tensor,  # [rows, 2, SPLIT, WIDTH, CHUNK] in 32 bits
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
    KINDS: tl.constexpr = 2 if MOMENTUM else 1
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    unit = part * BLOCK
    first_matrix, second_matrix = place(WIDTH, BLOCK, WIDTH), place(HIDDEN, WIDTH, BLOCK)
    held_bar += row.to(tl.int64) * KINDS * 2 * SIZE
    exchange += row * 2 * SPLIT * WIDTH * CHUNK
    first = tl.load(held_bar + unit * WIDTH + first_matrix)
    second = tl.load(held_bar + SIZE + unit + second_matrix)
    velocities = held_bar + 2 * SIZE + unit * WIDTH
    velocities_2 = held_bar + 3 * SIZE + unit
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gain + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + wide)[:, None] if NORM else 0.0
    for back in range(chunks):
        chunk = row * chunks + chunks - 1 - back
        token, end = chunk * CHUNK + tl.arange(0, CHUNK), chunk * CHUNK + CHUNK - 1
        deep = chunk * HIDDEN + unit
        copy_bar = seconds_bar + chunk.to(tl.int64) * KINDS * SIZE + unit
        key = tl.trans(keys.load([chunk * CHUNK, 0]))
        write = tl.load(end_written + token)[None, :]

        # Through the step of the first matrix, and before the slope of its errors.
        low_matrix = first.to(low)
        firsts_bar.store([chunk * KINDS * HIDDEN + unit, 0], low_matrix)
        bar = returned_bar.load([deep, 0]).to(tl.float32)
        bar -= product(low_matrix, key, PRECISION) * write
        if MOMENTUM:
            faster = tl.load(end_velocity_written + token)[None, :]
            low_matrix = tl.load(velocities + first_matrix).to(low)
            firsts_bar.store([(chunk * KINDS + 1) * HIDDEN + unit, 0], low_matrix)
            bar -= product(low_matrix, key, PRECISION) * faster
        bent = (bar * bends.load([deep, 0])).to(low)
        u_bar = (bar * slopes.load([deep, 0])).to(low)
        returned_bar.store([deep, 0], u_bar)

        # Through the step of the second, and through its errors, taken at the chunk's start.
        x = inputs.load([deep, 0])
        low_matrix = second.to(low)
        tl.store(copy_bar + second_matrix, low_matrix)
        error_bar = product(low_matrix, x, PRECISION) * -write
        if MOMENTUM:
            low_matrix = tl.load(velocities_2 + second_matrix).to(low)
            tl.store(copy_bar + SIZE + second_matrix, low_matrix)
            error_bar -= product(low_matrix, x, PRECISION) * faster
        copy = seconds.load([chunk * KINDS * WIDTH, unit])
        error_bar = added(error_bar, copy, u_bar, PRECISION)
        if ANCHOR:
            error_bar = added(error_bar, anchor_2.load([(row % anchor_rows) * WIDTH, unit]), u_bar, PRECISION)
        error_bar = summed(error_bar, exchange, arrived + row, part, back, WIDTH, CHUNK, SPLIT)
        error_bar += last_errors_bar.load([chunk * WIDTH, 0])
        if part == 0:
            errors_bar.store([chunk * WIDTH, 0], error_bar.to(low))
        normal = normals.load([chunk * WIDTH, 0]).to(tl.float32)
        scale = tl.load(scales + token)[None, :]
        value = tl.trans(values.load([chunk * CHUNK, 0])).to(tl.float32)
        limit = tl.load(threshold + token)[None, :] if HUBER else 0.0
        output_bar, _, _, _ = through_last_error(
            error_bar, normal, scale, key.to(tl.float32), value, g, s, limit, NORM, RESIDUAL, BIAS, P, 0
        )
        output_bar = output_bar.to(low)

        # Before the activation. Adjoints of the second matrix come turned back by way of their copies.
        tl.debug_barrier()
        error = last_errors.load([chunk * WIDTH, 0])
        x_bar = hidden_bar.load([deep, 0]).to(tl.float32)
        matrix_back = turned(HIDDEN, WIDTH, BLOCK)
        moved = (error.to(tl.float32) * -write).to(low)
        x_bar = added(x_bar, tl.load(copy_bar + matrix_back), moved, PRECISION)
        if MOMENTUM:
            moved = (error.to(tl.float32) * -faster).to(low)
            x_bar = added(x_bar, tl.load(copy_bar + SIZE + matrix_back), moved, PRECISION)
        x_bar = added(x_bar, tl.trans(seconds.load([chunk * KINDS * WIDTH, unit])), output_bar, PRECISION)
        if ANCHOR:
            returning = tl.trans(anchor_2.load([(row % anchor_rows) * WIDTH, unit]))
            x_bar = added(x_bar, returning, output_bar, PRECISION)
        z_bar = (x_bar * slopes.load([deep, 0]) + bent).to(low)
        hidden_bar.store([deep, 0], z_bar)

        # The adjoints of what was held at the chunk's start.
        query = queries.load([chunk * CHUNK, 0]).to(tl.float32)
        read_bar, read = read_outputs_bar.load([deep, 0]), read_inputs.load([deep, 0])
        last_bar = read_last_bar.load([chunk * WIDTH, 0]).to(tl.float32)
        share = tl.load(kept + token)
        keep = tl.load(kept + end)
        if MOMENTUM:
            carry_share = tl.load(carried + token)
            carry = tl.load(carried + end)
            velocity_keep = tl.load(end_velocity_kept + end)
            velocity = first * carry + tl.load(velocities + first_matrix) * velocity_keep
            velocity = added(velocity, read_bar, (query * carry_share[:, None]).to(low), PRECISION)
            tl.store(velocities + first_matrix, velocity)
            velocity = second * carry + tl.load(velocities_2 + second_matrix) * velocity_keep
            velocity = added(velocity, (last_bar * carry_share[None, :]).to(low), tl.trans(read), PRECISION)
            tl.store(velocities_2 + second_matrix, velocity)
        first = added(first * keep, read_bar, (query * share[:, None]).to(low), PRECISION)
        first = added(first, z_bar, tl.trans(key), PRECISION)
        second = added(second * keep, (last_bar * share[None, :]).to(low), tl.trans(read), PRECISION)
        second = added(second, output_bar, tl.trans(x), PRECISION)
        second = added(second, error, tl.trans(u_bar), PRECISION)
    tl.store(held_bar + unit * WIDTH + first_matrix, first)
    tl.store(held_bar + SIZE + unit + second_matrix, second)
