"""A linear memory's way from chunk to chunk and its adjoints' way back: all that must wait for the chunk before.

The matrix is held as its distance from the anchor, where there is one, and turned: [OUT, WIDTH]. So are its velocity
and their adjoints. SPLIT programs walk one row, each with BLOCK of the outputs: these never meet unless the inner loss
or the norm looks at all of them, where SPLIT must be one.

ERRORS says where a chunk's errors come from: "given" (minus the values), "solved" (a gradient at every token, made
ready by `linear_writing`), or "head" (the gradient at the chunk's start).
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.heads import last_error, normalised, through_last_error
from lockstep.kernels.memory.tiles import added, place, product, turned


@triton.jit
def linear_chain_kernel(
    keys: tl.tensor,  # [rows, time, WIDTH]
    values: tl.tensor,  # [rows, time, OUT]
    threshold: tl.tensor,  # [rows, time]
    gain: tl.tensor,  # [heads, OUT]
    shift: tl.tensor,
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    end_written: tl.tensor,
    velocity_kept: tl.tensor,
    end_velocity_written: tl.tensor,
    anchors: tl.tensor,  # [rows or heads, OUT, WIDTH]
    kept_keys: tl.tensor,  # [rows, chunks, WIDTH, CHUNK], solved
    carried_keys: tl.tensor,
    targets: tl.tensor,  # [rows, chunks, OUT, CHUNK], solved
    held: tl.tensor,  # [rows, 1 or 2, OUT, WIDTH] in 32 bits: weights, then velocity; replaced by the last ones
    copies: tl.tensor,  # [rows, chunks, 1 or 2, OUT, WIDTH]: what was held at the start of each chunk
    errors: tl.tensor,  # [rows, chunks, OUT, CHUNK]
    heads: int,
    anchor_rows: int,
    chunks: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    ERRORS: tl.constexpr,
    MOMENTUM: tl.constexpr,
    ANCHOR: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    P: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    row, part = tl.program_id(0).to(tl.int64) // SPLIT, tl.program_id(0) % SPLIT
    low = keys.dtype.element_ty
    OUT: tl.constexpr = BLOCK * SPLIT
    SIZE: tl.constexpr = OUT * WIDTH
    PARTS: tl.constexpr = 2 if MOMENTUM else 1
    HUBER: tl.constexpr = BIAS == "norm" or BIAS == "coordinate" or BIAS == "switch"
    matrix, tile = place(WIDTH, BLOCK, WIDTH), place(CHUNK, BLOCK, CHUNK)
    held += row * PARTS * SIZE + part * BLOCK * WIDTH
    copies += row * chunks * PARTS * SIZE + part * BLOCK * WIDTH
    weights = tl.load(held + matrix)
    velocity = tl.load(held + SIZE + matrix) if MOMENTUM else weights
    if ANCHOR:
        anchors += (row % anchor_rows) * SIZE + part * BLOCK * WIDTH
    wide = (row % heads) * OUT + tl.arange(0, BLOCK)
    g = tl.load(gain + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + wide)[:, None] if NORM else 0.0
    for i in range(chunks):
        chunk = row * chunks + i
        token, end = chunk * CHUNK, chunk * CHUNK + CHUNK - 1
        here, mine = chunk * CHUNK * WIDTH, chunk * CHUNK * OUT + part * BLOCK * CHUNK
        low_weights = weights.to(low)
        tl.store(copies + matrix, low_weights)
        if MOMENTUM:
            low_velocity = velocity.to(low)
            tl.store(copies + SIZE + matrix, low_velocity)

        # What is written.
        if ERRORS == "solved":
            error = product(low_weights, tl.load(kept_keys + here + place(CHUNK, WIDTH, CHUNK)), PRECISION)
            if MOMENTUM:
                solved = tl.load(carried_keys + here + place(CHUNK, WIDTH, CHUNK))
                error = added(error, low_velocity, solved, PRECISION)
            error -= tl.load(targets + mine + tile)
        else:
            said = chunk * CHUNK * OUT + part * BLOCK + turned(OUT, CHUNK, BLOCK)
            value = tl.load(values + said).to(tl.float32)
            if ERRORS == "given":
                error = -value
            else:
                if ANCHOR:
                    low_weights = (weights + tl.load(anchors + matrix)).to(low)
                output = product(low_weights, tl.load(keys + here + turned(WIDTH, CHUNK, WIDTH)), PRECISION)
                normal, scale = normalised(output, NORM, 0)
                limit = tl.load(threshold + token + tl.arange(0, CHUNK))[None, :] if HUBER else 0.0
                own = tl.load(keys + said).to(tl.float32) if RESIDUAL else value
                error = last_error(normal, scale, own, value, g, s, limit, NORM, RESIDUAL, BIAS, P, 0)
        tl.store(errors + mine + tile, error.to(low))

        # Where that leads.
        key = tl.load(keys + here + place(WIDTH, CHUNK, WIDTH))
        write = tl.load(end_written + token + tl.arange(0, CHUNK))[None, :]
        weights *= tl.load(kept + end)
        if MOMENTUM:
            weights += velocity * tl.load(carried + end)
            faster = tl.load(end_velocity_written + token + tl.arange(0, CHUNK))[None, :]
            velocity *= tl.load(velocity_kept + end)
            velocity = added(velocity, (error * -faster).to(low), key, PRECISION)
        weights = added(weights, (error * -write).to(low), key, PRECISION)
        copies += PARTS * SIZE
    tl.store(held + matrix, weights)
    if MOMENTUM:
        tl.store(held + SIZE + matrix, velocity)


@triton.jit
def linear_chain_backward_kernel(
    queries: tl.tensor,  # [rows, time, WIDTH]
    keys: tl.tensor,
    values: tl.tensor,  # [rows, time, OUT]
    threshold: tl.tensor,  # [rows, time]
    gain: tl.tensor,  # [heads, OUT]
    shift: tl.tensor,
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    end_written: tl.tensor,
    velocity_kept: tl.tensor,
    end_velocity_written: tl.tensor,
    kept_keys: tl.tensor,  # [rows, chunks, WIDTH, CHUNK], solved
    carried_keys: tl.tensor,
    normals: tl.tensor,  # [rows, chunks, OUT, CHUNK]
    scales: tl.tensor,  # [rows, time]
    outputs_bar: tl.tensor,  # [rows, chunks, OUT, CHUNK]: of what was read, before the norm
    errors_bar: tl.tensor,  # [rows, chunks, OUT, CHUNK]: of the errors, by reads; out: all of it
    copies_bar: tl.tensor,  # [rows, chunks, 1 or 2, OUT, WIDTH]; out: of what was held at the end of each chunk
    held_bar: tl.tensor,  # [rows, 1 or 2, OUT, WIDTH]: of what was held last; out: of what was held first
    heads: int,
    chunks: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    ERRORS: tl.constexpr,
    MOMENTUM: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    P: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """What needs no other chunk is done before and after (`linear_reading`, `linear_settling`)."""
    row, part = tl.program_id(0).to(tl.int64) // SPLIT, tl.program_id(0) % SPLIT
    low = keys.dtype.element_ty
    OUT: tl.constexpr = BLOCK * SPLIT
    SIZE: tl.constexpr = OUT * WIDTH
    PARTS: tl.constexpr = 2 if MOMENTUM else 1
    HUBER: tl.constexpr = BIAS == "norm" or BIAS == "coordinate" or BIAS == "switch"
    CURVED: tl.constexpr = NORM or BIAS != "l2"
    matrix, tile = place(WIDTH, BLOCK, WIDTH), place(CHUNK, BLOCK, CHUNK)
    held_bar += row * PARTS * SIZE + part * BLOCK * WIDTH
    copies_bar += (row + 1) * chunks * PARTS * SIZE + part * BLOCK * WIDTH
    weights = tl.load(held_bar + matrix)
    velocity = tl.load(held_bar + SIZE + matrix) if MOMENTUM else weights
    wide = (row % heads) * OUT + tl.arange(0, BLOCK)
    g = tl.load(gain + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + wide)[:, None] if NORM else 0.0
    for back in range(chunks):
        chunk = row * chunks + chunks - 1 - back
        token, end = chunk * CHUNK, chunk * CHUNK + CHUNK - 1
        here, mine = chunk * CHUNK * WIDTH, chunk * CHUNK * OUT + part * BLOCK * CHUNK
        copies_bar -= PARTS * SIZE

        # Through the step, to the errors.
        key = tl.load(keys + here + turned(WIDTH, CHUNK, WIDTH))
        write = tl.load(end_written + token + tl.arange(0, CHUNK))[None, :]
        low_matrix = weights.to(low)
        tl.store(copies_bar + matrix, low_matrix)
        error_bar = product(low_matrix, key, PRECISION) * -write
        if MOMENTUM:
            faster = tl.load(end_velocity_written + token + tl.arange(0, CHUNK))[None, :]
            low_matrix = velocity.to(low)
            tl.store(copies_bar + SIZE + matrix, low_matrix)
            error_bar -= product(low_matrix, key, PRECISION) * faster
        error_bar += tl.load(errors_bar + mine + tile)
        low_bar = error_bar.to(low)
        tl.store(errors_bar + mine + tile, low_bar)
        if ERRORS == "head" and CURVED:
            # By way of memory: what is loaded has fewer tokens to a thread than what a product gave, and sums over
            # outputs are held for each of them.
            tl.debug_barrier()
            error_bar = tl.load(errors_bar + mine + tile).to(tl.float32)
            said = chunk * CHUNK * OUT + part * BLOCK + turned(OUT, CHUNK, BLOCK)
            value = tl.load(values + said).to(tl.float32)
            own = tl.load(keys + said).to(tl.float32) if RESIDUAL else value
            normal = tl.load(normals + mine + tile).to(tl.float32)
            scale = tl.load(scales + token + tl.arange(0, CHUNK))[None, :]
            limit = tl.load(threshold + token + tl.arange(0, CHUNK))[None, :] if HUBER else 0.0
            output_bar, _, _, _ = through_last_error(
                error_bar, normal, scale, own, value, g, s, limit, NORM, RESIDUAL, BIAS, P, 0
            )
            low_bar = output_bar.to(low)

        # To what was held at the chunk's start: by what was kept of it, by reads, and by the errors.
        query = tl.load(queries + here + place(WIDTH, CHUNK, WIDTH))
        read_bar = tl.load(outputs_bar + mine + tile).to(tl.float32)
        if MOMENTUM:
            velocity *= tl.load(velocity_kept + end)
            velocity += weights * tl.load(carried + end)
            carry = tl.load(carried + token + tl.arange(0, CHUNK))[None, :]
            velocity = added(velocity, (read_bar * carry).to(low), query, PRECISION)
            if ERRORS == "solved":
                solved = tl.load(carried_keys + here + turned(CHUNK, WIDTH, CHUNK))
                velocity = added(velocity, low_bar, solved, PRECISION)
        weights *= tl.load(kept + end)
        share = tl.load(kept + token + tl.arange(0, CHUNK))[None, :]
        weights = added(weights, (read_bar * share).to(low), query, PRECISION)
        if ERRORS == "solved":
            solved = tl.load(kept_keys + here + turned(CHUNK, WIDTH, CHUNK))
            weights = added(weights, low_bar, solved, PRECISION)
        if ERRORS == "head":
            weights = added(weights, low_bar, tl.trans(key), PRECISION)
    tl.store(held_bar + matrix, weights)
    if MOMENTUM:
        tl.store(held_bar + SIZE + matrix, velocity)
