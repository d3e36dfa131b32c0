"""One token through a memory of two matrices: what the kernel of `token` does.

Vectors meet matrices here, and all of it is multiplied and added in 32 bits. Tiles hold hidden units along the first
axis and the width along the second, for both matrices alike: rows [1, WIDTH] are tokens, columns [UNITS, 1] are what
hidden units hold.

Where programs share a row, each has some of the hidden units. What units must know of each other before they learn is
the error of the answer at the point alone, so that every program computes that for itself: it reads all of the point
for it, and of everything else what is its own. What they have to say afterwards are their parts of the new answer,
which the last of them listens to and adds up.

What a token brings is given, or made here of what is projected of it: rows behind a convolution, whose tail the last of
the programs writes over, and gates. Every program makes all of it for itself, which takes less than a kernel before.

Under lq and kl weights are made of what is held at the point, all of which every program has. Under kl they do not
follow what a change has in common for all units: that too every program computes for itself, but for what was held on
average before this token, which it is told, because others may have written over it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.arrivals import advance, come, heard, is_last, say
from lockstep.kernels.memory.activations import activate, activated_and_slope
from lockstep.kernels.memory.heads import last_error, mean, normalised, said
from lockstep.kernels.memory.retentions import along_weights, measure_of, measured
from lockstep.kernels.memory.tiles import place, turned
from lockstep.kernels.memory.token_gates import gates_of, linear_of, one_of
from lockstep.kernels.rows.single import put_three, row_of, three_before, three_staying
from lockstep.kernels.rows.walking import scale_of
from lockstep.kernels.waiting import await_the_one_before


@triton.jit
def through_first(row: tl.tensor, first: tl.tensor) -> tl.tensor:
    """What units hold, [UNITS, 1], before their activation."""
    return tl.sum(first * row, axis=1, keep_dims=True)


@triton.jit
def through_second(held: tl.tensor, second: tl.tensor) -> tl.tensor:
    """What units say together, [1, WIDTH]."""
    return tl.sum(second * held, axis=0, keep_dims=True)


@triton.jit
def lent(parameters: tl.tensor, where: tl.tensor, otherwise: tl.constexpr) -> tl.tensor:
    """What the outer model lends, or the number that stands for nothing."""
    if parameters is None:
        numbers = tl.full(where.shape, otherwise, tl.float32)
    else:
        numbers = tl.load(parameters + where).to(tl.float32)
    return numbers


@triton.jit
def read_from(
    answer: tl.tensor, query: tl.tensor, gain: tl.tensor, shift: tl.tensor, NORM: tl.constexpr, RESIDUAL: tl.constexpr
) -> tl.tensor:
    """What follows the last matrix; everything is [1, WIDTH]."""
    normal, _ = normalised(answer, NORM, 1)
    return said(normal, query, gain, shift, NORM, RESIDUAL)


@triton.jit
def token_kernel(
    queries: tl.tensor,  # [rows, WIDTH]; with a tail, what is projected of all three: [batch, 3, heads, WIDTH]
    keys: tl.tensor,  # [rows, WIDTH], and so on up to the threshold; with a tail, nothing
    values: tl.tensor,
    keep: tl.tensor,  # [rows]
    rate: tl.tensor,
    momentum: tl.tensor,
    threshold: tl.tensor,
    weight: tl.tensor,  # [TAPS, 3 × heads × WIDTH], `weight_stride` apart, of a convolution; without a tail, nothing
    tail: tl.tensor,  # [batch, TAPS - 1, 3 × heads × WIDTH]: written over
    given: tl.tensor,  # [batch, DIM], what the layer is given
    gate_weight: tl.tensor,  # [gates × heads, DIM]
    gate_bias: tl.tensor,  # [gates × heads]
    read_norm: tl.tensor,  # [WIDTH]: the weight of a norm of what each head has read; or nothing
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    stood: tl.tensor,  # [rows, WIDTH]: under kl what units of the first matrix hold, on average
    anchor_1: tl.tensor,  # [anchor_rows, WIDTH, HIDDEN]
    anchor_2: tl.tensor,  # [anchor_rows, HIDDEN, WIDTH]
    point_1: tl.tensor,  # [rows, WIDTH, HIDDEN]
    point_2: tl.tensor,  # [rows, HIDDEN, WIDTH]
    weights_1: tl.tensor,
    weights_2: tl.tensor,
    velocity_1: tl.tensor,
    velocity_2: tl.tensor,
    position: tl.tensor,  # [batch]
    next_point_1: tl.tensor,  # from here on what comes out, shaped as what went in
    next_point_2: tl.tensor,
    next_weights_1: tl.tensor,
    next_weights_2: tl.tensor,
    next_velocity_1: tl.tensor,
    next_velocity_2: tl.tensor,
    next_position: tl.tensor,
    reads: tl.tensor,  # [rows, WIDTH]
    parts: tl.tensor,  # [rows, SPLIT, WIDTH], silent (see `arrivals`), where a row has more than one program
    arrived: tl.tensor,  # [rows + batch]
    heads: int,
    anchor_rows: int,
    weight_stride: int,
    TAPS: tl.constexpr,
    EPSILON: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    DECAY: tl.constexpr,
    THRESHOLD: tl.constexpr,
    LARGEST: tl.constexpr,
    READ_EPSILON: tl.constexpr,
    WIDTH: tl.constexpr,
    HIDDEN: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLIT: tl.constexpr,
    COPIES: tl.constexpr,
    IN_PLACE: tl.constexpr,
    BIAS: tl.constexpr,
    P: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    ACTIVATION: tl.constexpr,
    RETENTION: tl.constexpr,
    Q: tl.constexpr,
    SIMPLEX: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """One program is one part of the hidden units of one row; IN_PLACE says that all comes out where it was."""
    index, part = tl.program_id(0) // SPLIT, tl.program_id(0) % SPLIT
    row, sample, head = index.to(tl.int64), index // heads, index % heads
    SIZE: tl.constexpr = WIDTH * HIDDEN
    UNITS: tl.constexpr = HIDDEN // SPLIT

    # Asked for before anything is waited for: what the kernel before this one cannot have left.
    whole_1 = tl.load(point_1 + row * SIZE + turned(HIDDEN, WIDTH, HIDDEN))
    whole_2 = tl.load(point_2 + row * SIZE + place(WIDTH, HIDDEN, WIDTH))
    at = tl.load(position + sample)
    wide = tl.arange(0, WIDTH)[None, :]
    g, s = lent(gain, head * WIDTH + wide, 1.0), lent(shift, head * WIDTH + wide, 0.0)
    read_gain = lent(read_norm, wide, 1.0)
    own_1 = part * UNITS + turned(HIDDEN, WIDTH, UNITS)
    own_2 = part * UNITS * WIDTH + place(WIDTH, UNITS, WIDTH)
    at_1, at_2 = row * SIZE + own_1, row * SIZE + own_2
    start_1, start_2 = whole_1, whole_2
    if SPLIT > 1:
        start_1, start_2 = tl.load(point_1 + at_1), tl.load(point_2 + at_2)
    held_1, held_2 = tl.load(weights_1 + at_1), tl.load(weights_2 + at_2)
    MOVES: tl.constexpr = velocity_1 is not None
    if MOVES:
        moved_1, moved_2 = tl.load(velocity_1 + at_1), tl.load(velocity_2 + at_2)
    if anchor_1 is not None:
        first = (index % anchor_rows).to(tl.int64) * SIZE
        rest_1, rest_2 = tl.load(anchor_1 + first + own_1), tl.load(anchor_2 + first + own_2)
    common, led = 0.0, tl.zeros([1, WIDTH], tl.float32)
    if RETENTION == "kl":
        common = -mean(whole_1, 0)
        if anchor_1 is not None:
            led = mean(tl.load(anchor_1 + first + turned(HIDDEN, WIDTH, HIDDEN)).to(tl.float32), 0)
    if tail is not None:
        # Of a convolution its sum is kept across the waiting: for its tiles matrices leave no room.
        dim = heads * WIDTH
        own_tail = tail + sample.to(tl.int64) * (TAPS - 1) * 3 * dim + head * WIDTH
        own = weight + head * WIDTH
        asked, named, told, asks, names, tells = three_before(own_tail, own, dim, weight_stride, WIDTH, TAPS)
        linear = linear_of(gate_weight, gate_bias, head, heads, DIM, BLOCK, DECAY, MOVES, THRESHOLD)
    await_the_one_before(OVERLAPS)
    rows = tl.num_programs(0) // SPLIT
    come(arrived + rows + sample, at)
    if tail is None:
        key = tl.load(keys + row * WIDTH + wide).to(tl.float32)
        value = tl.load(values + row * WIDTH + wide).to(tl.float32)
        query = tl.load(queries + row * WIDTH + wide).to(tl.float32)
        kept, step = tl.load(keep + row), tl.load(rate + row)
        turn = 0.0 if threshold is None else tl.load(threshold + row)
        coasting = 0.0 if momentum is None else tl.load(momentum + row)
    else:
        projected = queries + (sample * 3 * heads + head).to(tl.int64) * WIDTH + wide
        new_query, new_key, new_value = tl.load(projected), tl.load(projected + dim), tl.load(projected + 2 * dim)
        query, key = row_of(new_query, asked, asks), row_of(new_key, named, names)
        value = row_of(new_value, told, tells)
        gates = gates_of(given + sample.to(tl.int64) * DIM, linear, DIM, BLOCK, DECAY, MOVES, THRESHOLD, LARGEST)
        query *= scale_of(query, EPSILON)
        key *= scale_of(key, EPSILON)
        kept, step, coasting, turn = one_of(gates, 0), one_of(gates, 1), one_of(gates, 2), one_of(gates, 3)
    before = 0.0 if stood is None else tl.load(stood + row * WIDTH + wide)

    # The error at the point.
    most_1, scale_1 = measure_of(whole_1, RETENTION, Q, SIMPLEX, 0)
    most_2, scale_2 = measure_of(whole_2, RETENTION, Q, SIMPLEX, 1)
    second = measured(whole_2, most_2, scale_2, RETENTION)
    units = through_first(key, measured(whole_1, most_1, scale_1, RETENTION))
    answer = through_second(activate(units, ACTIVATION), second)
    normal, scale = normalised(answer, NORM, 1)
    error = last_error(normal, scale, key, value, g, s, turn, NORM, RESIDUAL, BIAS, P, 1)

    # The step, and what the first matrix says after it.
    if RETENTION == "kl":
        _, slopes = activated_and_slope(units, ACTIVATION)
        backs = tl.sum(second * error, axis=1, keep_dims=True) * slopes
        common += before * kept + led * (1.0 - kept) - mean(backs, 0) * step * key
        most_2, scale_2 = measure_of(start_2, RETENTION, Q, SIMPLEX, 1)
    begun_1, begun_2 = measured(start_1, most_1, scale_1, RETENTION), measured(start_2, most_2, scale_2, RETENTION)
    x, slope = activated_and_slope(through_first(key, begun_1), ACTIVATION)
    back = tl.sum(begun_2 * error, axis=1, keep_dims=True) * slope
    change_1, change_2 = (back * -step) * key, x * (error * -step)
    if MOVES:
        change_1 += moved_1 * coasting
        change_2 += moved_2 * coasting
    held_1, held_2 = held_1 * kept + change_1, held_2 * kept + change_2
    if anchor_1 is not None:
        held_1 += rest_1.to(tl.float32) * (1.0 - kept)
        held_2 += rest_2.to(tl.float32) * (1.0 - kept)
    if RETENTION == "kl":
        now_1 = begun_1 + (held_1 - start_1 - common) * (SIMPLEX / HIDDEN)
        now_2 = begun_2 + along_weights(held_2 - start_2, RETENTION, 1) * (SIMPLEX / WIDTH)
    else:
        now_1, now_2 = measured(held_1, most_1, scale_1, RETENTION), measured(held_2, most_2, scale_2, RETENTION)
    answer = through_second(activate(through_first(query, now_1), ACTIVATION), now_2)

    if SPLIT > 1:
        say(parts + (row * SPLIT + part) * WIDTH + wide, answer)
    tl.store(next_weights_1 + at_1, held_1)
    tl.store(next_weights_2 + at_2, held_2)
    if MOVES:
        tl.store(next_velocity_1 + at_1, change_1)
        tl.store(next_velocity_2 + at_2, change_2)
    closes = at.to(tl.int32) % CHUNK == CHUNK - 1
    if not IN_PLACE:
        tl.store(next_point_1 + at_1, tl.where(closes, held_1, start_1))
        tl.store(next_point_2 + at_2, tl.where(closes, held_2, start_2))
    if part == SPLIT - 1:
        if tail is not None:
            left = three_staying(own_tail, dim, WIDTH, TAPS)
        if SPLIT > 1:
            # Each part as often as there are threads for it.
            said_by = tl.arange(0, COPIES * SPLIT)[:, None] % SPLIT
            whole = heard(parts + (row * SPLIT + said_by) * WIDTH + wide)
            answer = tl.sum(whole, axis=0, keep_dims=True) / COPIES
        read = read_from(answer, query, g, s, NORM, RESIDUAL)
        if read_norm is not None:
            read *= tl.rsqrt(mean(read * read, 1) + READ_EPSILON) * read_gain
        tl.store(reads + row * WIDTH + wide, read.to(reads.dtype.element_ty))
        if tail is not None:
            tl.debug_barrier()  # all of it has been read: by this program, and by those that have spoken
            put_three(own_tail, left, new_query, new_key, new_value, dim, WIDTH, TAPS)
        if head == heads - 1:
            advance(next_position + sample, at, arrived + rows + sample, heads * SPLIT)
    if IN_PLACE:
        if closes:
            # No other program reads the old point of this row any more, and all of its weights are there.
            if is_last(arrived + row, SPLIT):
                where = row * SIZE + tl.arange(0, SIZE)
                tl.store(next_point_1 + where, tl.load(next_weights_1 + where))
                tl.store(next_point_2 + where, tl.load(next_weights_2 + where))
