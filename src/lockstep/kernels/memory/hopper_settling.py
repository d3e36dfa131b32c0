"""What is left when the adjoints of every chunk's end are known, on Hopper, in Gluon: `settling` says what is computed.

As many programs as there are multiprocessors, each with its share of the chunks one after the other. Half of the hidden
units at a time: while one matrix's tiles are multiplied, the other's are on their way.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from lockstep.kernels.memory.heads import through_last_error
from lockstep.kernels.memory.hopper_tiles import (
    Room,
    Rooms,
    Sheet,
    bring,
    own_chunks,
    rooms,
    send,
    shared_by_warps,
    unknown_zero,
)


@gluon.jit
def settle_kernel(
    keys: Sheet,  # [rows × time, WIDTH]
    values: Sheet,
    threshold: gl.tensor,  # [rows, time]
    gain: gl.tensor,  # [heads, WIDTH]
    shift: gl.tensor,
    end_written: gl.tensor,  # [rows, time]
    end_velocity_written: gl.tensor,
    anchors: Sheet,  # [heads or rows × 2 × WIDTH, HIDDEN], in halves, as all that is so wide
    copies: Sheet,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    inputs: Sheet,  # [rows × time, HIDDEN]
    first_errors: Sheet,
    last_errors: Sheet,  # [rows × time, WIDTH]
    normals: Sheet,
    scales: gl.tensor,  # [rows, time]
    errors_bar: Sheet,  # [rows × time, WIDTH]: of the last errors; out: of the last outputs
    hidden_bar: Sheet,  # [rows × time, HIDDEN]
    copies_bar: Sheet,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    keys_bar: Sheet,  # [rows × time, WIDTH]: by reads; out: all of it
    values_bar: Sheet,
    threshold_bar: gl.tensor,  # [rows, time]
    gain_bar: gl.tensor,  # [rows, chunks, WIDTH]
    shift_bar: gl.tensor,
    end_kept_bar: gl.tensor,  # [rows, chunks]
    end_carried_bar: gl.tensor,
    end_written_bar: gl.tensor,  # [rows, time]
    end_velocity_kept_bar: gl.tensor,  # [rows, chunks]
    end_velocity_written_bar: gl.tensor,  # [rows, time]
    heads: int,
    anchor_rows: int,
    chunks: int,
    total: int,
    CHUNK: gl.constexpr,
    WIDTH: gl.constexpr,
    HIDDEN: gl.constexpr,
    MOMENTUM: gl.constexpr,
    ANCHOR: gl.constexpr,
    NORM: gl.constexpr,
    RESIDUAL: gl.constexpr,
    BIAS: gl.constexpr,
    P: gl.constexpr,
    ACTIVATION: gl.constexpr,
) -> None:
    layout: gl.constexpr = shared_by_warps(WIDTH)
    down: gl.constexpr = gl.SliceLayout(1, layout)
    across: gl.constexpr = gl.SliceLayout(0, layout)
    low: gl.constexpr = keys.dtype
    HUBER: gl.constexpr = BIAS != "l2" and BIAS != "lp"
    tokens = gl.allocate_shared_memory(low, [4, CHUNK, WIDTH], keys.layout)
    outputs = rooms(keys, 5)
    firsts, seconds = rooms(inputs, 7 if MOMENTUM else 5), rooms(inputs, 5 if MOMENTUM else 3)
    loaded = gl.allocate_shared_memory(gl.int64, [5, 1], mbarrier.MBarrierLayout())
    for barrier in gl.static_range(5):
        mbarrier.init(loaded.index(barrier), count=1)
    fence_async_shared()

    begin, end = own_chunks(total)
    fetch_tokens(keys, last_errors, tokens, loaded, begin, 0, begin < end, CHUNK)
    fetch_outputs(values, normals, errors_bar, keys_bar, outputs, loaded.index(2), begin, begin < end, CHUNK)
    fetch_first(
        anchors, copies, copies_bar, first_errors, hidden_bar, firsts, loaded.index(3), begin, 0, begin < end,
        (begin // chunks) % anchor_rows, CHUNK, WIDTH, HIDDEN, MOMENTUM, ANCHOR,
    )  # fmt: skip
    fetch_second(
        copies, copies_bar, inputs, seconds, loaded.index(4), begin, 0, begin < end, CHUNK, WIDTH, HIDDEN, MOMENTUM
    )
    for chunk in range(begin, end):
        row, here, turn = chunk // chunks, chunk * CHUNK, chunk - begin
        more, zero = chunk + 1 < end, unknown_zero(chunk)
        token, place = here + gl.arange(0, CHUNK, down), gl.arange(0, WIDTH, across)
        write, scale = gl.load(end_written + token), gl.load(scales + token)[:, None]
        faster = gl.load(end_velocity_written + token) if MOMENTUM else write
        limit = gl.load(threshold + token)[:, None] if HUBER else 0.0
        g = gl.load(gain + (row % heads) * WIDTH + place)[None, :] if NORM else 1.0
        s = gl.load(shift + (row % heads) * WIDTH + place)[None, :] if NORM else 0.0
        fetch_tokens(keys, last_errors, tokens, loaded, chunk + 1, (turn + 1) & 1, more, CHUNK)

        # Through the last error.
        mbarrier.wait(loaded.index(turn & 1), (turn >> 1) & 1)
        mbarrier.wait(loaded.index(2), turn & 1)
        key_room, error_room = tokens.index(2 * (turn & 1)), tokens.index(2 * (turn & 1) + 1)
        key, value = key_room.load(layout).to(gl.float32), outputs[0].index(zero).load(layout).to(gl.float32)
        normal, error_bar = (
            outputs[1].index(zero).load(layout).to(gl.float32),
            outputs[2].index(zero).load(layout).to(gl.float32),
        )
        output_bar, loss_bar, gains_bar, limits_bar = through_last_error(
            error_bar, normal, scale, key, value, g, s, limit, NORM, RESIDUAL, BIAS, P, 1
        )
        key_bar = outputs[3].index(zero).load(layout).to(gl.float32)
        outputs[0].index(zero).store((-loss_bar).to(low))
        outputs[2].index(zero).store(output_bar.to(low))
        fence_async_shared()
        send(values_bar, [here, 0], outputs[0].index(zero))
        send(errors_bar, [here, 0], outputs[2].index(zero))
        if NORM:
            gl.store(gain_bar + chunk * WIDTH + place, gl.sum(gains_bar, 0))
            gl.store(shift_bar + chunk * WIDTH + place, gl.sum(loss_bar, 0))
        if HUBER:
            gl.store(threshold_bar + token, gl.sum(limits_bar, 1))
        if RESIDUAL:
            key_bar += loss_bar

        # Keys; how much was written; and how much was kept and carried on. What an adjoint makes of the errors tells
        # keys and shares apart only at the end, and sums are left to the end too.
        none = gl.zeros([CHUNK, WIDTH], gl.float32, layout)
        first_bar, second_bar, first_velocity_bar, second_velocity_bar = none, none, none, none
        keep_bar = gl.zeros([WIDTH, HIDDEN // 2], gl.float32, layout)
        carry_bar, velocity_keep_bar = keep_bar, keep_bar
        for half in gl.static_range(2):
            following = chunk if half == 0 else chunk + 1
            wanted = True if half == 0 else more
            held_room, bar_room, error_1_room = firsts[0].index(zero), firsts[1].index(zero), firsts[2].index(zero)
            mbarrier.wait(loaded.index(3), half)
            first_bar = warpgroup_mma(error_1_room, bar_room.permute((1, 0)), first_bar, is_async=True)
            key_bar = warpgroup_mma(firsts[3].index(zero), held_room.permute((1, 0)), key_bar, is_async=True)
            if ANCHOR:
                anchor = firsts[4].index(zero).permute((1, 0))
                key_bar = warpgroup_mma(firsts[3].index(zero), anchor, key_bar, is_async=True)
            bar = bar_room.load(layout).to(gl.float32)
            keep_bar += held_room.load(layout).to(gl.float32) * bar
            if MOMENTUM:
                velocity_bar_room = firsts[6].index(zero)
                first_velocity_bar = warpgroup_mma(
                    error_1_room, velocity_bar_room.permute((1, 0)), first_velocity_bar, is_async=True
                )
                velocity = firsts[5].index(zero).load(layout).to(gl.float32)
                carry_bar += velocity * bar
                velocity_keep_bar += velocity * velocity_bar_room.load(layout).to(gl.float32)
                first_bar, first_velocity_bar, key_bar = warpgroup_mma_wait(0, [first_bar, first_velocity_bar, key_bar])
            else:
                first_bar, key_bar = warpgroup_mma_wait(0, [first_bar, key_bar])
            fetch_first(
                anchors, copies, copies_bar, first_errors, hidden_bar, firsts, loaded.index(3), following, 1 - half,
                wanted, (following // chunks) % anchor_rows, CHUNK, WIDTH, HIDDEN, MOMENTUM, ANCHOR,
            )  # fmt: skip

            held_room, bar_room, input_room = seconds[0].index(zero), seconds[1].index(zero), seconds[2].index(zero)
            mbarrier.wait(loaded.index(4), half)
            second_bar = warpgroup_mma(input_room, bar_room.permute((1, 0)), second_bar, is_async=True)
            bar = bar_room.load(layout).to(gl.float32)
            keep_bar += held_room.load(layout).to(gl.float32) * bar
            if MOMENTUM:
                velocity_bar_room = seconds[4].index(zero)
                second_velocity_bar = warpgroup_mma(
                    input_room, velocity_bar_room.permute((1, 0)), second_velocity_bar, is_async=True
                )
                velocity = seconds[3].index(zero).load(layout).to(gl.float32)
                carry_bar += velocity * bar
                velocity_keep_bar += velocity * velocity_bar_room.load(layout).to(gl.float32)
                second_bar, second_velocity_bar = warpgroup_mma_wait(0, [second_bar, second_velocity_bar])
            else:
                second_bar = warpgroup_mma_wait(0, [second_bar])
            fetch_second(
                copies, copies_bar, inputs, seconds, loaded.index(4), following, 1 - half, wanted, CHUNK, WIDTH,
                HIDDEN, MOMENTUM,
            )  # fmt: skip
            if half == 0:
                tma.store_wait(0)
                fetch_outputs(values, normals, errors_bar, keys_bar, outputs, loaded.index(2), chunk + 1, more, CHUNK)
        key, error = key_room.load(layout).to(gl.float32), error_room.load(layout).to(gl.float32)
        key_bar -= first_bar * write[:, None]
        gl.store(end_written_bar + token, -gl.sum(key * first_bar + error * second_bar, 1))
        gl.store(end_kept_bar + chunk, gl.sum(gl.sum(keep_bar, 1), 0))
        if MOMENTUM:
            key_bar -= first_velocity_bar * faster[:, None]
            through = key * first_velocity_bar + error * second_velocity_bar
            gl.store(end_velocity_written_bar + token, -gl.sum(through, 1))
            gl.store(end_carried_bar + chunk, gl.sum(gl.sum(carry_bar, 1), 0))
            gl.store(end_velocity_kept_bar + chunk, gl.sum(gl.sum(velocity_keep_bar, 1), 0))
        outputs[4].index(zero).store(key_bar.to(low))
        fence_async_shared()
        send(keys_bar, [here, 0], outputs[4].index(zero))
    tma.store_wait(0)


@gluon.jit
def fetch_tokens(
    keys: Sheet,
    last_errors: Sheet,
    tokens: Room,
    loaded: Room,
    chunk: gl.tensor,
    slot: gl.tensor,
    wanted: gl.tensor,
    CHUNK: gl.constexpr,
) -> None:
    """Keys and last errors, which are wanted all along, into one of two slots."""
    barrier, here = loaded.index(slot), chunk * CHUNK
    mbarrier.expect(barrier, 2 * keys.block_type.nbytes, pred=wanted)
    bring(keys, [here, 0], barrier, tokens.index(2 * slot), pred=wanted)
    bring(last_errors, [here, 0], barrier, tokens.index(2 * slot + 1), pred=wanted)


@gluon.jit
def fetch_outputs(
    values: Sheet,
    normals: Sheet,
    errors_bar: Sheet,
    keys_bar: Sheet,
    outputs: Rooms,
    loaded: Room,
    chunk: gl.tensor,
    wanted: gl.tensor,
    CHUNK: gl.constexpr,
) -> None:
    """What the last error takes, and the adjoints of keys so far."""
    here = chunk * CHUNK
    mbarrier.expect(loaded, 4 * values.block_type.nbytes, pred=wanted)
    bring(values, [here, 0], loaded, outputs[0].index(0), pred=wanted)
    bring(normals, [here, 0], loaded, outputs[1].index(0), pred=wanted)
    bring(errors_bar, [here, 0], loaded, outputs[2].index(0), pred=wanted)
    bring(keys_bar, [here, 0], loaded, outputs[3].index(0), pred=wanted)


@gluon.jit
def fetch_first(
    anchors: Sheet,
    copies: Sheet,
    copies_bar: Sheet,
    first_errors: Sheet,
    hidden_bar: Sheet,
    firsts: Rooms,
    loaded: Room,
    chunk: gl.tensor,
    half: gl.tensor,
    wanted: gl.tensor,
    anchor: gl.tensor,
    CHUNK: gl.constexpr,
    WIDTH: gl.constexpr,
    HIDDEN: gl.constexpr,
    MOMENTUM: gl.constexpr,
    ANCHOR: gl.constexpr,
) -> None:
    """What half a chunk takes of the first matrix: itself, its adjoint, errors, their adjoint; anchor; velocities."""
    unit, here, copy = half * (HIDDEN // 2), chunk * CHUNK, chunk * (4 if MOMENTUM else 2) * WIDTH
    tiles: gl.constexpr = 4 + (1 if ANCHOR else 0) + (2 if MOMENTUM else 0)
    mbarrier.expect(loaded, tiles * copies.block_type.nbytes, pred=wanted)
    bring(copies, [copy, unit], loaded, firsts[0].index(0), pred=wanted)
    bring(copies_bar, [copy, unit], loaded, firsts[1].index(0), pred=wanted)
    bring(first_errors, [here, unit], loaded, firsts[2].index(0), pred=wanted)
    bring(hidden_bar, [here, unit], loaded, firsts[3].index(0), pred=wanted)
    if ANCHOR:
        bring(anchors, [anchor * 2 * WIDTH, unit], loaded, firsts[4].index(0), pred=wanted)
    if MOMENTUM:
        bring(copies, [copy + 2 * WIDTH, unit], loaded, firsts[5].index(0), pred=wanted)
        bring(copies_bar, [copy + 2 * WIDTH, unit], loaded, firsts[6].index(0), pred=wanted)


@gluon.jit
def fetch_second(
    copies: Sheet,
    copies_bar: Sheet,
    inputs: Sheet,
    seconds: Rooms,
    loaded: Room,
    chunk: gl.tensor,
    half: gl.tensor,
    wanted: gl.tensor,
    CHUNK: gl.constexpr,
    WIDTH: gl.constexpr,
    HIDDEN: gl.constexpr,
    MOMENTUM: gl.constexpr,
) -> None:
    """What it takes of the second: itself, its adjoint, inputs; velocities."""
    unit, here, copy = half * (HIDDEN // 2), chunk * CHUNK, chunk * (4 if MOMENTUM else 2) * WIDTH + WIDTH
    mbarrier.expect(loaded, (5 if MOMENTUM else 3) * copies.block_type.nbytes, pred=wanted)
    bring(copies, [copy, unit], loaded, seconds[0].index(0), pred=wanted)
    bring(copies_bar, [copy, unit], loaded, seconds[1].index(0), pred=wanted)
    bring(inputs, [here, unit], loaded, seconds[2].index(0), pred=wanted)
    if MOMENTUM:
        bring(copies, [copy + 2 * WIDTH, unit], loaded, seconds[3].index(0), pred=wanted)
        bring(copies_bar, [copy + 2 * WIDTH, unit], loaded, seconds[4].index(0), pred=wanted)
