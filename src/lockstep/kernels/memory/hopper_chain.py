"""The memory's way from chunk to chunk on Hopper, in Gluon: `chain` says what is computed, this file when and where.

One program walks a row, with both matrices and both velocities in registers, [WIDTH, HIDDEN], the second turned. What
Triton cannot be told is said here: tiles are on their way while others are computed, what is stored leaves meanwhile,
and the anchor stays in shared memory. Between two warp groups the hidden units are halved.
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

from lockstep.kernels.memory.activations import activated_and_slope
from lockstep.kernels.memory.heads import last_error, normalised
from lockstep.kernels.memory.hopper_tiles import Room, Rooms, Sheet, bring, rooms, send, shared_by_warps, unknown_zero


@gluon.jit
def chain_kernel(
    keys: Sheet,  # [rows × time, WIDTH]
    values: Sheet,
    threshold: gl.tensor,  # [rows, time]
    gain: gl.tensor,  # [heads, WIDTH]
    shift: gl.tensor,
    kept: gl.tensor,  # [rows, time]
    carried: gl.tensor,
    end_written: gl.tensor,
    velocity_kept: gl.tensor,
    end_velocity_written: gl.tensor,
    anchors: Sheet,  # [heads or rows × 2 × WIDTH, HIDDEN]
    held: Sheet,  # [rows, 2 or 4, WIDTH, HIDDEN] in 32 bits: weights, then velocities; replaced by the last ones
    copies: Sheet,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]: what was held at each chunk's start
    inputs: Sheet,  # [rows × time, HIDDEN]: what was written, for the reads
    first_errors: Sheet,
    last_errors: Sheet,  # [rows × time, WIDTH]
    heads: int,
    anchor_rows: int,
    chunks: int,
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
    wide: gl.constexpr = shared_by_warps(HIDDEN)
    narrow: gl.constexpr = shared_by_warps(WIDTH)
    across: gl.constexpr = gl.SliceLayout(0, narrow)
    low: gl.constexpr = keys.dtype
    PARTS: gl.constexpr = 4 if MOMENTUM else 2
    HUBER: gl.constexpr = BIAS != "l2" and BIAS != "lp"
    row = gl.program_id(0)

    narrows, wides = rooms(keys, 3 + PARTS), rooms(inputs, PARTS + 2 + 2 * ANCHOR)
    lent = lent_to(row % heads, gain, shift, NORM, WIDTH)
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    if ANCHOR:
        arrived = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(arrived, count=1)
        fence_async_shared()
        anchor = (row % anchor_rows) * 2 * WIDTH
        mbarrier.expect(arrived, 2 * anchors.block_type.nbytes)
        bring(anchors, [anchor, 0], arrived, wides[PARTS + 2].index(0))
        bring(anchors, [anchor + WIDTH, 0], arrived, wides[PARTS + 3].index(0))
    else:
        fence_async_shared()
    fetch(keys, values, row * chunks * CHUNK, loaded, narrows, True)

    state_loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(state_loaded, count=1)
    fence_async_shared()
    first = taken(held, row * PARTS * WIDTH, state_loaded, 0, wide)
    second = taken(held, row * PARTS * WIDTH + WIDTH, state_loaded, 1, wide)
    if MOMENTUM:
        velocity = taken(held, row * PARTS * WIDTH + 2 * WIDTH, state_loaded, 0, wide)
        velocity_2 = taken(held, row * PARTS * WIDTH + 3 * WIDTH, state_loaded, 1, wide)
    if ANCHOR:
        mbarrier.wait(arrived, 0)

    for i in range(chunks):
        chunk = row * chunks + i
        zero = unknown_zero(chunk)
        key_room, value_room, last_room = narrows[0].index(zero), narrows[1].index(zero), narrows[2].index(zero)
        input_room, first_room = wides[PARTS].index(zero), wides[PARTS + 1].index(zero)
        if ANCHOR:
            anchor_1, anchor_2 = wides[PARTS + 2].index(zero), wides[PARTS + 3].index(zero)
        here, copy, end = chunk * CHUNK, chunk * PARTS * WIDTH, chunk * CHUNK + CHUNK - 1
        token = here + gl.arange(0, CHUNK, gl.SliceLayout(1, narrow))
        write, keep = gl.load(end_written + token)[:, None], gl.load(kept + end)
        if MOMENTUM:
            faster = gl.load(end_velocity_written + token)[:, None]
            carry, velocity_keep = gl.load(carried + end), gl.load(velocity_kept + end)
        limit = gl.load(threshold + token)[:, None] if HUBER else 0.0

        # What is held, for the reads and as operands.
        tma.store_wait(0)
        wides[0].index(zero).store(first.to(low))
        wides[1].index(zero).store(second.to(low))
        if MOMENTUM:
            wides[2].index(zero).store(velocity.to(low))
            wides[3].index(zero).store(velocity_2.to(low))
        fence_async_shared()
        for part in gl.static_range(PARTS):
            send(copies, [copy + part * WIDTH, 0], wides[part].index(zero))

        # What is written.
        mbarrier.wait(loaded, i & 1)
        z = gl.zeros([CHUNK, HIDDEN], gl.float32, wide)
        z = warpgroup_mma(key_room, wides[0].index(zero), z, use_acc=False)
        if ANCHOR:
            z = warpgroup_mma(key_room, anchor_1, z)
        x, slope = activated_and_slope(z, ACTIVATION)
        input_room.store(x.to(low))
        first_room.store(slope.to(low))
        fence_async_shared()
        send(inputs, [here, 0], input_room)
        output = gl.zeros([CHUNK, WIDTH], gl.float32, narrow)
        output = warpgroup_mma(input_room, wides[1].index(zero).permute((1, 0)), output, use_acc=False)
        if ANCHOR:
            output = warpgroup_mma(input_room, anchor_2.permute((1, 0)), output)
        normal, scale = normalised(output, NORM, 1)
        key, value = key_room.load(narrow).to(gl.float32), value_room.load(narrow).to(gl.float32)
        fetch(keys, values, here + CHUNK, loaded, narrows, i + 1 < chunks)
        g, s = lent.index(0).load(across)[None, :], lent.index(1).load(across)[None, :]
        error = last_error(normal, scale, key, value, g, s, limit, NORM, RESIDUAL, BIAS, P, 1)
        last_room.store(error.to(low))
        narrows[3].index(zero).store((error * -write).to(low))
        narrows[4].index(zero).store((key * -write).to(low))
        if MOMENTUM:
            narrows[5].index(zero).store((error * -faster).to(low))
            narrows[6].index(zero).store((key * -faster).to(low))
        fence_async_shared()
        send(last_errors, [here, 0], last_room)

        # Where that leads: the second matrix meanwhile.
        returned = gl.zeros([CHUNK, HIDDEN], gl.float32, wide)
        returned = warpgroup_mma(last_room, wides[1].index(zero), returned, use_acc=False, is_async=True)
        if ANCHOR:
            returned = warpgroup_mma(last_room, anchor_2, returned, is_async=True)
        first, second = first * keep, second * keep
        if MOMENTUM:
            first, second = first + velocity * carry, second + velocity_2 * carry
            velocity, velocity_2 = velocity * velocity_keep, velocity_2 * velocity_keep
        second = warpgroup_mma(narrows[3].index(zero).permute((1, 0)), input_room, second, is_async=True)
        if MOMENTUM:
            velocity_2 = warpgroup_mma(narrows[5].index(zero).permute((1, 0)), input_room, velocity_2, is_async=True)
            returned = warpgroup_mma_wait(2, [returned])
        else:
            returned = warpgroup_mma_wait(1, [returned])
        first_room.store((returned * first_room.load(wide).to(gl.float32)).to(low))
        fence_async_shared()
        send(first_errors, [here, 0], first_room)
        first = warpgroup_mma(narrows[4].index(zero).permute((1, 0)), first_room, first, is_async=True)
        if MOMENTUM:
            velocity = warpgroup_mma(narrows[6].index(zero).permute((1, 0)), first_room, velocity, is_async=True)
            first, second, velocity, velocity_2 = warpgroup_mma_wait(0, [first, second, velocity, velocity_2])
        else:
            first, second = warpgroup_mma_wait(0, [first, second])
    tma.store_wait(0)
    left(held, row * PARTS * WIDTH, first)
    left(held, row * PARTS * WIDTH + WIDTH, second)
    if MOMENTUM:
        left(held, row * PARTS * WIDTH + 2 * WIDTH, velocity)
        left(held, row * PARTS * WIDTH + 3 * WIDTH, velocity_2)


@gluon.jit
def fetch(keys: Sheet, values: Sheet, token: gl.tensor, loaded: Room, narrows: Rooms, wanted: gl.tensor) -> None:
    """Keys and values of a chunk, on their way."""
    mbarrier.expect(loaded, keys.block_type.nbytes + values.block_type.nbytes, pred=wanted)
    bring(keys, [token, 0], loaded, narrows[0].index(0), pred=wanted)
    bring(values, [token, 0], loaded, narrows[1].index(0), pred=wanted)


@gluon.jit
def lent_to(head: gl.tensor, gain: gl.tensor, shift: gl.tensor, NORM: gl.constexpr, WIDTH: gl.constexpr) -> Room:
    """Gain and shift of a head in shared memory [2, WIDTH]: registers are for what changes."""
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [8], [0])
    room = gl.allocate_shared_memory(gl.float32, [2, WIDTH], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    if NORM:
        across = head * WIDTH + gl.arange(0, WIDTH, flat)
        room.index(0).store(gl.load(gain + across))
        room.index(1).store(gl.load(shift + across))
    return room


@gluon.jit
def taken(held: Sheet, place: gl.tensor, loaded: Room, turn: gl.constexpr, layout: gl.constexpr) -> gl.tensor:
    """A matrix in 32 bits, by way of shared memory."""
    room = gl.allocate_shared_memory(held.dtype, held.block_type.shape, held.layout)
    mbarrier.expect(loaded, held.block_type.nbytes)
    bring(held, [place, 0], loaded, room)
    mbarrier.wait(loaded, turn)
    return room.load(layout)


@gluon.jit
def left(held: Sheet, place: gl.tensor, matrix: gl.tensor) -> None:
    room = gl.allocate_shared_memory(held.dtype, held.block_type.shape, held.layout, matrix)
    fence_async_shared()
    send(held, [place, 0], room)
    tma.store_wait(0)
