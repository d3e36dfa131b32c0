"""The memory's way from chunk to chunk and its adjoints' way back: all that must wait for the chunk before.

SPLIT programs walk one row, each with BLOCK of the hidden units; once a chunk they add up what the second matrix says.
Weights are held as their distance from the anchor, where there is one, and turned: the first matrix as [HIDDEN, WIDTH],
the second as [WIDTH, HIDDEN]. Velocities and adjoints are held the same way. Only weights stay in registers: velocities,
in 32 bits as they are, come from memory and go back there once a chunk, because what does not fit would go there anyway,
and more often.
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

    exchange [2, SPLIT, ROWS, COLUMNS] in 32 bits: two rooms in turn, so that nobody overwrites what is still being read.
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
    keys: tl.tensor,  # [rows, time, WIDTH]
    values: tl.tensor,
    threshold: tl.tensor,  # [rows, time]
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    end_written: tl.tensor,
    end_velocity_kept: tl.tensor,
    end_velocity_written: tl.tensor,
    anchors: tl.tensor,  # [rows or heads, 2, …]: both matrices
    held: tl.tensor,  # [rows, 2 or 4, …] in 32 bits: weights, then velocities; replaced by the last ones
    copies: tl.tensor,  # [rows, chunks, 2 or 4, …]: what was held at the start of each chunk
    inputs: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]: what was written, for the reads
    first_errors: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]
    last_errors: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]
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
    row, part = tl.program_id(0).to(tl.int64) // SPLIT, tl.program_id(0) % SPLIT
    low = keys.dtype.element_ty
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    SIZE: tl.constexpr = WIDTH * HIDDEN
    PARTS: tl.constexpr = 4 if MOMENTUM else 2
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    first_matrix, second_matrix = place(WIDTH, BLOCK, WIDTH), place(HIDDEN, WIDTH, BLOCK)
    # Where this program's units begin: rows of the first matrix, columns of the second.
    mine, mine_2 = part * BLOCK * WIDTH, SIZE + part * BLOCK
    held += row * PARTS * SIZE
    copies += row * chunks * PARTS * SIZE
    exchange += row * 2 * SPLIT * WIDTH * CHUNK
    if ANCHOR:
        anchors += (row % anchor_rows) * 2 * SIZE
    first = tl.load(held + mine + first_matrix)
    second = tl.load(held + mine_2 + second_matrix)
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gain + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + wide)[:, None] if NORM else 0.0
    for i in range(chunks):
        chunk = row * chunks + i
        token, end = chunk * CHUNK, chunk * CHUNK + CHUNK - 1
        here = chunk * CHUNK * WIDTH
        deep = (chunk * HIDDEN + part * BLOCK) * CHUNK
        tl.store(copies + mine + first_matrix, first.to(low))
        tl.store(copies + mine_2 + second_matrix, second.to(low))

        # What is written.
        key = tl.load(keys + here + turned(WIDTH, CHUNK, WIDTH))
        weights = first
        if ANCHOR:
            weights += tl.load(anchors + mine + first_matrix)
        z = product(weights.to(low), key, PRECISION)
        x = activate(z, ACTIVATION).to(low)
        slope = slope_of(z, ACTIVATION).to(low)
        tl.store(inputs + deep + place(CHUNK, BLOCK, CHUNK), x)
        weights = second
        if ANCHOR:
            weights += tl.load(anchors + mine_2 + second_matrix)
        output = product(weights.to(low), x, PRECISION)
        output = summed(output, exchange, arrived + row, part, i, WIDTH, CHUNK, SPLIT)
        normal, scale = normalised(output, NORM, 0)
        value = tl.load(values + here + turned(WIDTH, CHUNK, WIDTH)).to(tl.float32)
        limit = tl.load(threshold + token + tl.arange(0, CHUNK))[None, :] if HUBER else 0.0
        error = last_error(normal, scale, key.to(tl.float32), value, g, s, limit, NORM, RESIDUAL, BIAS, P, 0)
        low_error = error.to(low)
        if part == 0:
            tl.store(last_errors + here + place(CHUNK, WIDTH, CHUNK), low_error)

        # Where that leads: the second matrix, and then the first, whose errors come back through the second.
        write = tl.load(end_written + token + tl.arange(0, CHUNK))[None, :]
        keep = tl.load(kept + end)
        second *= keep
        if MOMENTUM:
            carry = tl.load(carried + end)
            velocity_keep = tl.load(end_velocity_kept + end)
            faster = tl.load(end_velocity_written + token + tl.arange(0, CHUNK))[None, :]
            velocity = tl.load(held + 2 * SIZE + mine_2 + second_matrix)
            tl.store(copies + 2 * SIZE + mine_2 + second_matrix, velocity.to(low))
            second += velocity * carry
            velocity = added(velocity * velocity_keep, (error * -faster).to(low), tl.trans(x), PRECISION)
            tl.store(held + 2 * SIZE + mine_2 + second_matrix, velocity)
        second = added(second, (error * -write).to(low), tl.trans(x), PRECISION)
        tl.debug_barrier()
        # The second matrix as it was, turned back, by way of its copy.
        returning = tl.load(copies + mine_2 + turned(HIDDEN, WIDTH, BLOCK))
        if ANCHOR:
            anchor = tl.load(anchors + mine_2 + turned(HIDDEN, WIDTH, BLOCK))
            returning = (returning.to(tl.float32) + anchor).to(low)
        error_1 = product(returning, low_error, PRECISION) * slope
        tl.store(first_errors + deep + place(CHUNK, BLOCK, CHUNK), error_1.to(low))
        first *= keep
        if MOMENTUM:
            velocity = tl.load(held + 2 * SIZE + mine + first_matrix)
            tl.store(copies + 2 * SIZE + mine + first_matrix, velocity.to(low))
            first += velocity * carry
            velocity = added(velocity * velocity_keep, (error_1 * -faster).to(low), tl.trans(key), PRECISION)
            tl.store(held + 2 * SIZE + mine + first_matrix, velocity)
        first = added(first, (error_1 * -write).to(low), tl.trans(key), PRECISION)
        copies += PARTS * SIZE
    tl.store(held + mine + first_matrix, first)
    tl.store(held + mine_2 + second_matrix, second)


@triton.jit
def chain_backward_kernel(
    queries: tl.tensor,  # [rows, time, WIDTH]
    keys: tl.tensor,
    values: tl.tensor,
    threshold: tl.tensor,
    gain: tl.tensor,
    shift: tl.tensor,
    kept: tl.tensor,
    carried: tl.tensor,
    end_written: tl.tensor,
    end_velocity_kept: tl.tensor,
    end_velocity_written: tl.tensor,
    anchors: tl.tensor,
    copies: tl.tensor,
    inputs: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]: what each chunk wrote, and the derivatives of its activations
    slopes: tl.tensor,
    bends: tl.tensor,
    last_errors: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]
    normals: tl.tensor,
    scales: tl.tensor,  # [rows, time]
    read_inputs: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]: what was read, and the adjoints of that
    read_outputs_bar: tl.tensor,
    read_last_bar: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]
    returned_bar: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]: of the first errors, by reads; out: before the slope
    last_errors_bar: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]: of the last errors, by reads
    hidden_bar: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]: of the inputs, by reads; out: before the activation
    errors_bar: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]; out: of the last errors, all of it
    copies_bar: tl.tensor,  # [rows, chunks, 2 or 4, …]; out: of what was held at the end of each chunk
    held_bar: tl.tensor,  # [rows, 2 or 4, …]: of what was held last; out: of what was held first
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
    row, part = tl.program_id(0).to(tl.int64) // SPLIT, tl.program_id(0) % SPLIT
    low = keys.dtype.element_ty
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    SIZE: tl.constexpr = WIDTH * HIDDEN
    PARTS: tl.constexpr = 4 if MOMENTUM else 2
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    first_matrix, second_matrix = place(WIDTH, BLOCK, WIDTH), place(HIDDEN, WIDTH, BLOCK)
    mine, mine_2 = part * BLOCK * WIDTH, SIZE + part * BLOCK
    held_bar += row * PARTS * SIZE
    copies += (row + 1) * chunks * PARTS * SIZE
    copies_bar += (row + 1) * chunks * PARTS * SIZE
    exchange += row * 2 * SPLIT * WIDTH * CHUNK
    if ANCHOR:
        anchors += (row % anchor_rows) * 2 * SIZE
    first = tl.load(held_bar + mine + first_matrix)
    second = tl.load(held_bar + mine_2 + second_matrix)
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gain + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + wide)[:, None] if NORM else 0.0
    for back in range(chunks):
        i = chunks - 1 - back
        chunk = row * chunks + i
        token = chunk * CHUNK
        here = chunk * CHUNK * WIDTH
        deep = (chunk * HIDDEN + part * BLOCK) * CHUNK
        copies -= PARTS * SIZE
        copies_bar -= PARTS * SIZE
        key = tl.load(keys + here + turned(WIDTH, CHUNK, WIDTH))
        write = tl.load(end_written + token + tl.arange(0, CHUNK))[None, :]

        # Through the step of the first matrix, and before the slope of its errors.
        low_matrix = first.to(low)
        tl.store(copies_bar + mine + first_matrix, low_matrix)
        bar = tl.load(returned_bar + deep + place(CHUNK, BLOCK, CHUNK)).to(tl.float32)
        bar -= product(low_matrix, key, PRECISION) * write
        if MOMENTUM:
            faster = tl.load(end_velocity_written + token + tl.arange(0, CHUNK))[None, :]
            low_matrix = tl.load(held_bar + 2 * SIZE + mine + first_matrix).to(low)
            tl.store(copies_bar + 2 * SIZE + mine + first_matrix, low_matrix)
            bar -= product(low_matrix, key, PRECISION) * faster
        bent = (bar * tl.load(bends + deep + place(CHUNK, BLOCK, CHUNK))).to(low)
        u_bar = (bar * tl.load(slopes + deep + place(CHUNK, BLOCK, CHUNK))).to(low)
        tl.store(returned_bar + deep + place(CHUNK, BLOCK, CHUNK), u_bar)

        # Through the step of the second, and through its errors, taken at the chunk's start.
        x = tl.load(inputs + deep + place(CHUNK, BLOCK, CHUNK))
        low_matrix = second.to(low)
        tl.store(copies_bar + mine_2 + second_matrix, low_matrix)
        error_bar = product(low_matrix, x, PRECISION) * -write
        if MOMENTUM:
            low_matrix = tl.load(held_bar + 2 * SIZE + mine_2 + second_matrix).to(low)
            tl.store(copies_bar + 2 * SIZE + mine_2 + second_matrix, low_matrix)
            error_bar -= product(low_matrix, x, PRECISION) * faster
        weights = tl.load(copies + mine_2 + second_matrix)
        if ANCHOR:
            weights = (weights.to(tl.float32) + tl.load(anchors + mine_2 + second_matrix)).to(low)
        error_bar = added(error_bar, weights, u_bar, PRECISION)
        error_bar = summed(error_bar, exchange, arrived + row, part, back, WIDTH, CHUNK, SPLIT)
        error_bar += tl.load(last_errors_bar + here + place(CHUNK, WIDTH, CHUNK))
        if part == 0:
            tl.store(errors_bar + here + place(CHUNK, WIDTH, CHUNK), error_bar.to(low))
        normal = tl.load(normals + here + place(CHUNK, WIDTH, CHUNK)).to(tl.float32)
        scale = tl.load(scales + token + tl.arange(0, CHUNK))[None, :]
        value = tl.load(values + here + turned(WIDTH, CHUNK, WIDTH)).to(tl.float32)
        limit = tl.load(threshold + token + tl.arange(0, CHUNK))[None, :] if HUBER else 0.0
        output_bar, _, _, _ = through_last_error(
            error_bar, normal, scale, key.to(tl.float32), value, g, s, limit, NORM, RESIDUAL, BIAS, P, 0
        )
        output_bar = output_bar.to(low)

        # Before the activation. What stands turned here comes by way of memory.
        tl.debug_barrier()
        error = tl.load(last_errors + here + place(CHUNK, WIDTH, CHUNK)).to(tl.float32)
        x_bar = tl.load(hidden_bar + deep + place(CHUNK, BLOCK, CHUNK)).to(tl.float32)
        back_matrix = turned(HIDDEN, WIDTH, BLOCK)
        x_bar = added(x_bar, tl.load(copies_bar + mine_2 + back_matrix), (error * -write).to(low), PRECISION)
        if MOMENTUM:
            x_bar = added(
                x_bar, tl.load(copies_bar + 2 * SIZE + mine_2 + back_matrix), (error * -faster).to(low), PRECISION
            )
        weights = tl.load(copies + mine_2 + back_matrix)
        if ANCHOR:
            weights = (weights.to(tl.float32) + tl.load(anchors + mine_2 + back_matrix)).to(low)
        x_bar = added(x_bar, weights, output_bar, PRECISION)
        z_bar = (x_bar * tl.load(slopes + deep + place(CHUNK, BLOCK, CHUNK)) + bent).to(low)
        tl.store(hidden_bar + deep + place(CHUNK, BLOCK, CHUNK), z_bar)

        # The adjoints of what was held at the chunk's start.
        query = tl.load(queries + here + place(WIDTH, CHUNK, WIDTH)).to(tl.float32)
        share = tl.load(kept + token + tl.arange(0, CHUNK))
        keep = tl.load(kept + chunk * CHUNK + CHUNK - 1)
        read_bar = tl.load(read_outputs_bar + deep + place(CHUNK, BLOCK, CHUNK))
        read = tl.load(read_inputs + deep + place(CHUNK, BLOCK, CHUNK))
        last_bar = tl.load(read_last_bar + here + place(CHUNK, WIDTH, CHUNK)).to(tl.float32)
        if MOMENTUM:
            carry_share = tl.load(carried + token + tl.arange(0, CHUNK))
            carry = tl.load(carried + chunk * CHUNK + CHUNK - 1)
            velocity_keep = tl.load(end_velocity_kept + chunk * CHUNK + CHUNK - 1)
            velocity = first * carry + tl.load(held_bar + 2 * SIZE + mine + first_matrix) * velocity_keep
            velocity = added(velocity, read_bar, (query * carry_share[:, None]).to(low), PRECISION)
            tl.store(held_bar + 2 * SIZE + mine + first_matrix, velocity)
            velocity = second * carry + tl.load(held_bar + 2 * SIZE + mine_2 + second_matrix) * velocity_keep
            velocity = added(velocity, (last_bar * carry_share[None, :]).to(low), tl.trans(read), PRECISION)
            tl.store(held_bar + 2 * SIZE + mine_2 + second_matrix, velocity)
        first = added(first * keep, read_bar, (query * share[:, None]).to(low), PRECISION)
        first = added(first, z_bar, tl.trans(key), PRECISION)
        second = added(second * keep, (last_bar * share[None, :]).to(low), tl.trans(read), PRECISION)
        second = added(second, output_bar, tl.trans(x), PRECISION)
        second = added(second, error.to(low), tl.trans(u_bar), PRECISION)
    tl.store(held_bar + mine + first_matrix, first)
    tl.store(held_bar + mine_2 + second_matrix, second)
