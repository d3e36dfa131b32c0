"""The way from chunk to chunk, and back, of a memory whose weights are not what it holds: retention lq or kl.

Inside a chunk weights are a base and what follows what is held, as under l2 they are an anchor and the distance from
it; so that what lies side by side is computed by the kernels for that, each chunk with an anchor of its own. What is
left is here: `chain` says how, but for the weights, which are made of what is held when a chunk begins.

One program walks a row, with all of the hidden units.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.activations import activate, slope_of
from lockstep.kernels.memory.chain import summed
from lockstep.kernels.memory.heads import last_error, normalised, through_last_error
from lockstep.kernels.memory.retentions import along_weights, through_weights, weights_and_scale
from lockstep.kernels.memory.tiles import added, place, product


@triton.jit
def opened(
    held: tl.tensor,
    anchors: tl.tensor_descriptor,
    anchor: tl.tensor,
    copies: tl.tensor_descriptor,
    bases: tl.tensor_descriptor,
    copy: tl.tensor,
    RETENTION: tl.constexpr,
    Q: tl.constexpr,
    SIMPLEX: tl.constexpr,
    AXIS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """A matrix as a chunk begins: its weights as products take them, and its scale."""
    low = copies.dtype
    weights, scale = weights_and_scale(held, RETENTION, Q, SIMPLEX, AXIS)
    follows = held * scale
    if anchors is not None:
        follows = (held - anchors.load([anchor, 0])) * scale
    copies.store([copy, 0], follows.to(low))
    bases.store([copy, 0], (weights - follows).to(low))
    return weights.to(low), scale


@triton.jit
def faded(held: tl.tensor, anchors: tl.tensor_descriptor, anchor: tl.tensor, keep: tl.tensor) -> tl.tensor:
    """What is left of a matrix."""
    left = held * keep
    if anchors is not None:
        left += anchors.load([anchor, 0]) * (1.0 - keep)
    return left


@triton.jit
def through_rest(
    anchors_bar: tl.tensor, where: tl.tensor, held_bar: tl.tensor, distance_bar: tl.tensor, keep: tl.tensor
) -> None:
    """The anchor's adjoint by a chunk is added to those by later ones: what is forgotten leads to it, and what follows
    is the distance from it."""
    if anchors_bar is not None:
        tl.store(anchors_bar + where, tl.load(anchors_bar + where) + held_bar * (1.0 - keep) - distance_bar)


@triton.jit
def retained_chain_kernel(
    keys: tl.tensor_descriptor,  # [rows × time, WIDTH]
    values: tl.tensor_descriptor,
    threshold: tl.tensor,  # [rows, time]
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    kept: tl.tensor,  # [rows, time]
    end_written: tl.tensor,
    anchors: tl.tensor_descriptor,  # [heads or rows × 2 × WIDTH, HIDDEN] in 32 bits
    held: tl.tensor,  # [rows, 2, WIDTH, HIDDEN] in 32 bits; replaced by what is held last
    copies: tl.tensor_descriptor,  # [rows × chunks × 2 × WIDTH, HIDDEN]: what follows, at each chunk's start
    bases: tl.tensor_descriptor,  # the rest of the weights
    scales: tl.tensor,  # [rows, chunks, 2]: how far each matrix follows
    inputs: tl.tensor_descriptor,  # [rows × time, HIDDEN]: what was written, as weights follow it, for the reads
    first_errors: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × time, WIDTH]
    exchange: tl.tensor,  # [rows, 2, CHUNK, WIDTH] in 32 bits
    heads: int,
    anchor_rows: int,
    chunks: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    HIDDEN: tl.constexpr,
    RETENTION: tl.constexpr,
    Q: tl.constexpr,
    SIMPLEX: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    P: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    low = keys.dtype
    SIZE: tl.constexpr = WIDTH * HIDDEN
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    matrix = place(HIDDEN, WIDTH, HIDDEN)
    held += row.to(tl.int64) * 2 * SIZE
    exchange += row.to(tl.int64) * 2 * WIDTH * CHUNK
    anchor = (row % anchor_rows) * 2 * WIDTH
    first, second = tl.load(held + matrix), tl.load(held + SIZE + matrix)
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    for i in range(chunks):
        chunk = row * chunks + i
        here, copy = chunk * CHUNK, chunk * 2 * WIDTH
        token, end = here + tl.arange(0, CHUNK), here + CHUNK - 1
        low_first, scale_1 = opened(first, anchors, anchor, copies, bases, copy, RETENTION, Q, SIMPLEX, 1)
        low_second, scale_2 = opened(
            second, anchors, anchor + WIDTH, copies, bases, copy + WIDTH, RETENTION, Q, SIMPLEX, 0
        )
        tl.store(scales + 2 * chunk, scale_1)
        tl.store(scales + 2 * chunk + 1, scale_2)

        # What is written.
        key = keys.load([here, 0])
        z = product(key, low_first, PRECISION)
        x = activate(z, ACTIVATION).to(low)
        inputs.store([here, 0], x)
        output = product(x, tl.trans(low_second), PRECISION)
        # Through memory, because errors are turned below; nobody else arrives.
        output = summed(output, exchange, exchange, 0, i, CHUNK, WIDTH, 1)
        normal, narrow = normalised(output, NORM, 1)
        value = values.load([here, 0]).to(tl.float32)
        limit = tl.load(threshold + token)[:, None] if HUBER else 0.0
        g = tl.load(gain + wide)[None, :] if NORM else 1.0
        s = tl.load(shift + wide)[None, :] if NORM else 0.0
        error = last_error(normal, narrow, key.to(tl.float32), value, g, s, limit, NORM, RESIDUAL, BIAS, P, 1)
        error_1 = product(error.to(low), low_second, PRECISION) * slope_of(z, ACTIVATION)
        error_1, error = along_weights(error_1, RETENTION, 1), along_weights(error, RETENTION, 1)
        first_errors.store([here, 0], (error_1 * scale_1).to(low))
        last_errors.store([here, 0], (error * scale_2).to(low))

        # Where that leads.
        write, keep = tl.load(end_written + token)[:, None], tl.load(kept + end)
        first, second = faded(first, anchors, anchor, keep), faded(second, anchors, anchor + WIDTH, keep)
        first = added(first, tl.trans(key), (error_1 * -write).to(low), PRECISION)
        second = added(second, tl.trans((error * -write).to(low)), x, PRECISION)
    tl.store(held + matrix, first)
    tl.store(held + SIZE + matrix, second)


@triton.jit
def retained_chain_backward_kernel(
    queries: tl.tensor_descriptor,  # [rows × time, WIDTH]
    keys: tl.tensor_descriptor,
    values: tl.tensor_descriptor,
    threshold: tl.tensor,  # [rows, time]
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    kept: tl.tensor,  # [rows, time]
    end_written: tl.tensor,
    copies: tl.tensor_descriptor,  # [rows × chunks × 2 × WIDTH, HIDDEN]
    bases: tl.tensor_descriptor,
    scales: tl.tensor,  # [rows, chunks, 2]
    inputs: tl.tensor_descriptor,  # [rows × time, HIDDEN]: what was written, and the activations' derivatives
    slopes: tl.tensor_descriptor,
    bends: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × time, WIDTH]: as they are
    first_followed: tl.tensor_descriptor,  # [rows × time, HIDDEN]: as weights follow them
    last_followed: tl.tensor_descriptor,  # [rows × time, WIDTH]
    normals: tl.tensor_descriptor,
    narrowness: tl.tensor,  # [rows, time], one over the deviation of what was normalised
    read_inputs: tl.tensor_descriptor,  # [rows × time, HIDDEN]: what was read, and the adjoints of that
    read_outputs_bar: tl.tensor_descriptor,
    read_last_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]
    first_followed_bar: tl.tensor_descriptor,  # [rows × time, HIDDEN]: by reads, as is what follows
    last_followed_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]
    hidden_bar: tl.tensor_descriptor,  # [rows × time, HIDDEN]: of the inputs; out: before the activation
    errors_bar: tl.tensor_descriptor,  # [rows × time, WIDTH]; out: of the last errors, all of it
    copies_bar: tl.tensor_descriptor,  # [rows × chunks × 2 × WIDTH, HIDDEN]; out: of what each chunk ended with
    held_bar: tl.tensor,  # [rows, 2, WIDTH, HIDDEN]: of what was held last; out: of what was held first
    anchors_bar: tl.tensor,  # [rows, 2, WIDTH, HIDDEN], zeros, or None; out: of each row's anchor
    exchange: tl.tensor,  # [rows, 2, CHUNK, WIDTH] in 32 bits
    heads: int,
    chunks: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    HIDDEN: tl.constexpr,
    RETENTION: tl.constexpr,
    Q: tl.constexpr,
    SIMPLEX: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    P: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Adjoints of each chunk's end come out as those of what followed it, as reads and what settles have them."""
    row = tl.program_id(0)
    low = keys.dtype
    SIZE: tl.constexpr = WIDTH * HIDDEN
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    matrix = place(HIDDEN, WIDTH, HIDDEN)
    held_bar += row.to(tl.int64) * 2 * SIZE
    if anchors_bar is not None:
        anchors_bar += row.to(tl.int64) * 2 * SIZE
    exchange += row.to(tl.int64) * 2 * WIDTH * CHUNK
    first, second = tl.load(held_bar + matrix), tl.load(held_bar + SIZE + matrix)
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    for back in range(chunks):
        chunk = row * chunks + chunks - 1 - back
        here, copy = chunk * CHUNK, chunk * 2 * WIDTH
        token, end = here + tl.arange(0, CHUNK), here + CHUNK - 1
        write = tl.load(end_written + token)[:, None]
        scale_1, scale_2 = tl.load(scales + 2 * chunk), tl.load(scales + 2 * chunk + 1)

        # Through the step of the first matrix, and before the slope of its errors.
        copies_bar.store([copy, 0], (first / scale_1).to(low))
        by_reads = first_followed_bar.load([here, 0]).to(tl.float32)
        scale_bar_1 = tl.sum(by_reads * first_followed.load([here, 0]).to(tl.float32))
        bar = by_reads * scale_1 - product(keys.load([here, 0]), first.to(low), PRECISION) * write
        bar = along_weights(bar, RETENTION, 1)
        bent = (bar * bends.load([here, 0])).to(low)
        u_bar = (bar * slopes.load([here, 0])).to(low)

        # Through that of the second.
        low_second = second.to(low)
        copies_bar.store([copy + WIDTH, 0], (second / scale_2).to(low))
        by_reads_2 = last_followed_bar.load([here, 0]).to(tl.float32)
        followed = last_followed.load([here, 0]).to(tl.float32)
        scale_bar_2 = tl.sum(by_reads_2 * followed)
        error_bar = by_reads_2 * scale_2 - product(inputs.load([here, 0]), tl.trans(low_second), PRECISION) * write
        error_bar = along_weights(error_bar, RETENTION, 1)

        # Through the last errors, taken at the chunk's start.
        error_bar = added(error_bar, u_bar, tl.trans(copies.load([copy + WIDTH, 0])), PRECISION)
        error_bar = added(error_bar, u_bar, tl.trans(bases.load([copy + WIDTH, 0])), PRECISION)
        error_bar = summed(error_bar, exchange, exchange, 0, back, CHUNK, WIDTH, 1)
        errors_bar.store([here, 0], error_bar.to(low))
        normal, narrow = normals.load([here, 0]).to(tl.float32), tl.load(narrowness + token)[:, None]
        value = values.load([here, 0]).to(tl.float32)
        limit = tl.load(threshold + token)[:, None] if HUBER else 0.0
        g = tl.load(gain + wide)[None, :] if NORM else 1.0
        s = tl.load(shift + wide)[None, :] if NORM else 0.0
        output_bar, _, _, _ = through_last_error(
            error_bar,
            normal,
            narrow,
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
        x_bar = hidden_bar.load([here, 0]).to(tl.float32)
        x_bar = added(x_bar, (followed * -write / scale_2).to(low), low_second, PRECISION)
        x_bar = added(x_bar, low_output_bar, copies.load([copy + WIDTH, 0]), PRECISION)
        x_bar = added(x_bar, low_output_bar, bases.load([copy + WIDTH, 0]), PRECISION)
        z_bar = (x_bar * slopes.load([here, 0]) + bent).to(low)
        hidden_bar.store([here, 0], z_bar)

        # The adjoints of what was held at the chunk's start: reads have all of the base, and less than all of the rest.
        keep, lost = tl.load(kept + end), 1.0 - tl.load(kept + token)[None, :]
        query = tl.trans(queries.load([here, 0]))
        read_bar = read_outputs_bar.load([here, 0])
        weights_bar = product(query, read_bar, PRECISION)
        weights_bar = added(weights_bar, tl.trans(keys.load([here, 0])), z_bar, PRECISION)
        follows_bar = product((query.to(tl.float32) * -lost).to(low), read_bar, PRECISION)
        follows, base = copies.load([copy, 0]).to(tl.float32), bases.load([copy, 0]).to(tl.float32)
        through_rest(anchors_bar, matrix, first, follows_bar * scale_1, keep)
        first = first * keep + follows_bar * scale_1
        first += through_weights(
            weights_bar, follows_bar, follows, base, scale_1, scale_bar_1, RETENTION, Q, SIMPLEX, 1
        )
        last_bar = tl.trans(read_last_bar.load([here, 0]))
        read = read_inputs.load([here, 0])
        weights_bar = product(last_bar, read, PRECISION)
        weights_bar = added(weights_bar, tl.trans(low_output_bar), inputs.load([here, 0]), PRECISION)
        weights_bar = added(weights_bar, tl.trans(last_errors.load([here, 0])), u_bar, PRECISION)
        follows_bar = product((last_bar.to(tl.float32) * -lost).to(low), read, PRECISION)
        follows, base = copies.load([copy + WIDTH, 0]).to(tl.float32), bases.load([copy + WIDTH, 0]).to(tl.float32)
        through_rest(anchors_bar, SIZE + matrix, second, follows_bar * scale_2, keep)
        second = second * keep + follows_bar * scale_2
        second += through_weights(
            weights_bar, follows_bar, follows, base, scale_2, scale_bar_2, RETENTION, Q, SIMPLEX, 0
        )
    tl.store(held_bar + matrix, first)
    tl.store(held_bar + SIZE + matrix, second)
