"""What each chunk wrote, once more, on Hopper, in Gluon: `writing` says what is computed.

As many programs as there are multiprocessors, each with its share of the chunks one after the other: those of the next
chunk are on their way meanwhile.
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

from lockstep.kernels.memory.activations import activate, curve_of, slope_of
from lockstep.kernels.memory.heads import last_error, normalised
from lockstep.kernels.memory.hopper_tiles import (
    Room,
    Sheet,
    bring,
    fetch_anchors,
    own_chunks,
    rooms,
    send,
    shared_by_warps,
    unknown_zero,
)


@gluon.jit
def rewrite_kernel(
    keys: Sheet,  # [rows × time, WIDTH]
    values: Sheet,
    threshold: gl.tensor,  # [rows, time]
    gain: gl.tensor,  # [heads, WIDTH]
    shift: gl.tensor,
    anchors: Sheet,  # [heads or rows × 2 × WIDTH, HIDDEN]
    copies: Sheet,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    inputs: Sheet,  # [rows × time, HIDDEN]: what comes out
    slopes: Sheet,
    bends: Sheet,
    first_errors: Sheet,
    last_errors: Sheet,  # [rows × time, WIDTH]
    normals: Sheet,
    scales: gl.tensor,  # [rows, time]
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
    wide: gl.constexpr = shared_by_warps(HIDDEN)
    narrow: gl.constexpr = shared_by_warps(WIDTH)
    down: gl.constexpr = gl.SliceLayout(1, narrow)
    across: gl.constexpr = gl.SliceLayout(0, narrow)
    low: gl.constexpr = keys.dtype
    PARTS: gl.constexpr = 4 if MOMENTUM else 2
    HUBER: gl.constexpr = BIAS != "l2" and BIAS != "lp"
    tokens = gl.allocate_shared_memory(low, [4, CHUNK, WIDTH], keys.layout)
    matrices = gl.allocate_shared_memory(low, [4, WIDTH, HIDDEN], copies.layout)
    outputs = rooms(keys, 2)
    units = rooms(inputs, 4)
    loaded = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for barrier in gl.static_range(3):
        mbarrier.init(loaded.index(barrier), count=1)
    fence_async_shared()
    if ANCHOR:
        anchor_rooms = gl.allocate_shared_memory(low, [2, WIDTH, HIDDEN], anchors.layout)
        anchor, anchor_phase = -1, 1

    begin, end = own_chunks(total)
    fetch(keys, values, copies, tokens, matrices, loaded, begin, 0, begin < end, CHUNK, WIDTH, PARTS)
    for chunk in range(begin, end):
        row, here, turn, zero = chunk // chunks, chunk * CHUNK, chunk - begin, unknown_zero(chunk)
        slot = turn & 1
        fetch(keys, values, copies, tokens, matrices, loaded, chunk + 1, 1 - slot, chunk + 1 < end, CHUNK, WIDTH, PARTS)
        token, place = here + gl.arange(0, CHUNK, down), (row % heads) * WIDTH + gl.arange(0, WIDTH, across)
        limit = gl.load(threshold + token)[:, None] if HUBER else 0.0
        g = gl.load(gain + place)[None, :] if NORM else 1.0
        s = gl.load(shift + place)[None, :] if NORM else 0.0
        key_room, value_room = tokens.index(2 * slot), tokens.index(2 * slot + 1)
        first, second = matrices.index(2 * slot), matrices.index(2 * slot + 1)
        input_room, error_room = units[0].index(zero), outputs[0].index(zero)
        anchor_1, anchor_2 = first, second
        if ANCHOR:
            anchor_1, anchor_2 = anchor_rooms.index(zero), anchor_rooms.index(zero + 1)
            if anchor != row % anchor_rows:
                anchor, anchor_phase = row % anchor_rows, anchor_phase ^ 1
                fetch_anchors(anchors, anchor, loaded.index(2), anchor_1, anchor_2, anchor_phase, WIDTH)

        mbarrier.wait(loaded.index(slot), (turn >> 1) & 1)
        z = gl.zeros([CHUNK, HIDDEN], gl.float32, wide)
        z = warpgroup_mma(key_room, first, z, use_acc=False, is_async=True)
        if ANCHOR:
            z = warpgroup_mma(key_room, anchor_1, z, is_async=True)
        z = warpgroup_mma_wait(0, [z])
        tma.store_wait(0)
        input_room.store(activate(z, ACTIVATION).to(low))
        fence_async_shared()
        send(inputs, [here, 0], input_room)
        output = gl.zeros([CHUNK, WIDTH], gl.float32, narrow)
        output = warpgroup_mma(input_room, second.permute((1, 0)), output, use_acc=False, is_async=True)
        if ANCHOR:
            output = warpgroup_mma(input_room, anchor_2.permute((1, 0)), output, is_async=True)
        slope = slope_of(z, ACTIVATION)
        units[1].index(zero).store(slope.to(low))
        output = warpgroup_mma_wait(0, [output])
        normal, scale = normalised(output, NORM, 1)
        key, value = key_room.load(narrow).to(gl.float32), value_room.load(narrow).to(gl.float32)
        error = last_error(normal, scale, key, value, g, s, limit, NORM, RESIDUAL, BIAS, P, 1)
        error_room.store(error.to(low))
        outputs[1].index(zero).store(normal.to(low))
        fence_async_shared()
        gl.store(scales + token[:, None], scale)
        send(last_errors, [here, 0], error_room)
        send(normals, [here, 0], outputs[1].index(zero))
        send(slopes, [here, 0], units[1].index(zero))
        returned = gl.zeros([CHUNK, HIDDEN], gl.float32, wide)
        returned = warpgroup_mma(error_room, second, returned, use_acc=False, is_async=True)
        if ANCHOR:
            returned = warpgroup_mma(error_room, anchor_2, returned, is_async=True)
        curve = curve_of(z, ACTIVATION)
        returned = warpgroup_mma_wait(0, [returned])
        units[2].index(zero).store((returned * curve).to(low))
        units[3].index(zero).store((returned * slope).to(low))
        fence_async_shared()
        send(bends, [here, 0], units[2].index(zero))
        send(first_errors, [here, 0], units[3].index(zero))
    tma.store_wait(0)


@gluon.jit
def fetch(
    keys: Sheet,
    values: Sheet,
    copies: Sheet,
    tokens: Room,
    matrices: Room,
    loaded: Room,
    chunk: gl.tensor,
    slot: gl.tensor,
    wanted: gl.tensor,
    CHUNK: gl.constexpr,
    WIDTH: gl.constexpr,
    PARTS: gl.constexpr,
) -> None:
    """Keys, values and both matrices of a chunk, on their way to one of two slots."""
    barrier, here, copy = loaded.index(slot), chunk * CHUNK, chunk * PARTS * WIDTH
    mbarrier.expect(barrier, 2 * keys.block_type.nbytes + 2 * copies.block_type.nbytes, pred=wanted)
    bring(keys, [here, 0], barrier, tokens.index(2 * slot), pred=wanted)
    bring(copies, [copy, 0], barrier, matrices.index(2 * slot), pred=wanted)
    bring(copies, [copy + WIDTH, 0], barrier, matrices.index(2 * slot + 1), pred=wanted)
    bring(values, [here, 0], barrier, tokens.index(2 * slot + 1), pred=wanted)
