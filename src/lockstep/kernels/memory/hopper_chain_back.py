"""The way back of the memory's adjoints on Hopper, in Gluon, as `hopper_chain` has the way there.

Tiles are wanted at different times of a chunk: those that are wanted late take the rooms of those that were early.
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
from lockstep.kernels.memory.hopper_chain import left, lent_to, taken
from lockstep.kernels.memory.hopper_tiles import (
    Sheet,
    bring,
    rooms,
    send,
    shared_by_warps,
    unknown_zero,
)


@gluon.jit
def chain_backward_kernel(
    queries: Sheet,  # [rows × time, WIDTH]
    keys: Sheet,
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
    copies: Sheet,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    inputs: Sheet,  # [rows × time, HIDDEN]: what was written, and the activations' derivatives
    slopes: Sheet,
    bends: Sheet,
    last_errors: Sheet,  # [rows × time, WIDTH]
    normals: Sheet,
    scales: gl.tensor,  # [rows, time]
    read_inputs: Sheet,  # [rows × time, HIDDEN]: what was read, and the adjoints of that
    read_outputs_bar: Sheet,
    read_last_bar: Sheet,  # [rows × time, WIDTH]
    returned_bar: Sheet,  # [rows × time, HIDDEN]: of the first errors, by reads; out: before the slope
    last_errors_bar: Sheet,  # [rows × time, WIDTH]: of the last errors, by reads
    hidden_bar: Sheet,  # [rows × time, HIDDEN]: of the inputs, by reads; out: before the activation
    errors_bar: Sheet,  # [rows × time, WIDTH]; out: of the last errors, all of it
    copies_bar: Sheet,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]; out: of what each chunk ended with
    held_bar: Sheet,  # [rows × 2 or 4 × WIDTH, HIDDEN] in 32 bits: of what was held last; out: of what was held first
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
    """Tiles that are wanted late in a chunk take the rooms of those that were wanted early."""
    wide: gl.constexpr = shared_by_warps(HIDDEN)
    narrow: gl.constexpr = shared_by_warps(WIDTH)
    left_wide: gl.constexpr = gl.DotOperandLayout(0, wide, 2)
    left_down: gl.constexpr = gl.SliceLayout(1, left_wide)
    left_across: gl.constexpr = gl.SliceLayout(0, left_wide)
    down: gl.constexpr = gl.SliceLayout(1, narrow)
    across: gl.constexpr = gl.SliceLayout(0, narrow)
    low: gl.constexpr = keys.dtype
    PARTS: gl.constexpr = 4 if MOMENTUM else 2
    HUBER: gl.constexpr = BIAS != "l2" and BIAS != "lp"
    WIDE_BYTES: gl.constexpr = inputs.block_type.nbytes
    NARROW_BYTES: gl.constexpr = keys.block_type.nbytes
    row = gl.program_id(0)

    # Rooms: adjoints as operands; tiles by when they are wanted; what leaves.
    units_rooms = rooms(inputs, 3)
    wides, narrows = rooms(inputs, 4 if MOMENTUM else 5), rooms(keys, 6)
    lent = lent_to(row % heads, gain, shift, NORM, WIDTH)
    coefficients = gl.allocate_shared_memory(gl.float32, [6, CHUNK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    loaded = gl.allocate_shared_memory(gl.int64, [6, 1], mbarrier.MBarrierLayout())
    for barrier in gl.static_range(6):
        mbarrier.init(loaded.index(barrier), count=1)
    early, middle, norms, late, last = (
        loaded.index(0),
        loaded.index(1),
        loaded.index(2),
        loaded.index(3),
        loaded.index(4),
    )
    state_loaded = loaded.index(5)
    fence_async_shared()
    if ANCHOR:
        mbarrier.expect(state_loaded, anchors.block_type.nbytes)
        anchor = (row % anchor_rows) * 2 * WIDTH + WIDTH
        bring(anchors, [anchor, 0], state_loaded, wides[3].index(0))
    else:
        mbarrier.arrive(state_loaded)
    mbarrier.wait(state_loaded, 0)
    first = taken(held_bar, row * PARTS * WIDTH, state_loaded, 1, wide)
    second = taken(held_bar, row * PARTS * WIDTH + WIDTH, state_loaded, 0, wide)
    if MOMENTUM:
        velocity = taken(held_bar, row * PARTS * WIDTH + 2 * WIDTH, state_loaded, 1, wide)
        velocity_2 = taken(held_bar, row * PARTS * WIDTH + 3 * WIDTH, state_loaded, 0, wide)
    # After the state has come, so that it may have come through the same room.
    matrices = rooms(copies, PARTS)
    next_ones = coefficients_of(
        (row * chunks + chunks - 1) * CHUNK,
        end_written,
        end_velocity_written,
        kept,
        carried,
        scales,
        threshold,
        CHUNK,
        MOMENTUM,
        HUBER,
    )

    for back in range(chunks):
        chunk = row * chunks + chunks - 1 - back
        here, copy, end = chunk * CHUNK, chunk * PARTS * WIDTH, chunk * CHUNK + CHUNK - 1
        phase, zero = back & 1, unknown_zero(chunk)
        units = units_rooms[0].index(zero), units_rooms[1].index(zero), units_rooms[2].index(zero)
        input_room, second_room, read_room, anchor_room = (
            wides[0].index(zero), wides[1].index(zero), wides[2].index(zero), wides[3].index(zero)
        )  # fmt: skip
        key_room, error_room, normal_room = narrows[0].index(zero), narrows[1].index(zero), narrows[2].index(zero)
        error_bar_room, outputs = narrows[3].index(zero), (narrows[4].index(zero), narrows[5].index(zero))
        # The adjoints of the first matrix and its velocity are no operands any more when these come.
        read_input_room = matrices[0].index(zero)
        u_room = matrices[2].index(zero) if MOMENTUM else wides[4].index(zero)
        tma.store_wait(0)
        mbarrier.expect(early, NARROW_BYTES + 3 * WIDE_BYTES)
        bring(keys, [here, 0], early, key_room)
        bring(returned_bar, [here, 0], early, units[0])
        bring(slopes, [here, 0], early, units[1])
        bring(bends, [here, 0], early, units[2])
        mbarrier.expect(middle, WIDE_BYTES + copies.block_type.nbytes)
        bring(inputs, [here, 0], middle, input_room)
        bring(copies, [copy + WIDTH, 0], middle, second_room)
        mbarrier.expect(norms, 4 * NARROW_BYTES)
        bring(last_errors_bar, [here, 0], norms, outputs[0])
        bring(values, [here, 0], norms, outputs[1])
        bring(normals, [here, 0], norms, normal_room)
        bring(last_errors, [here, 0], norms, error_room)
        keep = gl.load(kept + end)
        for part in gl.static_range(6):
            coefficients.index(part).store(next_ones[part])
        following = here - CHUNK if back + 1 < chunks else here
        next_ones = coefficients_of(
            following, end_written, end_velocity_written, kept, carried, scales, threshold, CHUNK, MOMENTUM, HUBER
        )

        # Operands, which are also what each chunk ended with.
        matrices[0].index(zero).store(first.to(low))
        matrices[1].index(zero).store(second.to(low))
        if MOMENTUM:
            matrices[2].index(zero).store(velocity.to(low))
            matrices[3].index(zero).store(velocity_2.to(low))
            carry, velocity_keep = gl.load(carried + end), gl.load(velocity_kept + end)
        fence_async_shared()
        for part in gl.static_range(PARTS):
            send(copies_bar, [copy + part * WIDTH, 0], matrices[part].index(zero))

        # Through the step of the first matrix, and before the slope of its errors.
        mbarrier.wait(early, phase)
        key_left = key_room.load(left_wide).to(gl.float32)
        bar = units[0].load(wide).to(gl.float32)
        key_written = (key_left * -coefficients.index(0).load(left_down)[:, None]).to(low)
        bar = warpgroup_mma(key_written, matrices[0].index(zero), bar, is_async=True)
        if MOMENTUM:
            key_faster = (key_left * -coefficients.index(1).load(left_down)[:, None]).to(low)
            bar = warpgroup_mma(key_faster, matrices[2].index(zero), bar, is_async=True)
            bar = warpgroup_mma_wait(0, [bar, key_written, key_faster])[0]
        else:
            bar = warpgroup_mma_wait(0, [bar, key_written])[0]
        units[2].store((bar * units[2].load(wide).to(gl.float32)).to(low))
        u_bar = (bar * units[1].load(wide).to(gl.float32)).to(low)
        tma.store_wait(0)
        u_room.store(u_bar)
        fence_async_shared()
        send(returned_bar, [here, 0], u_room)
        mbarrier.expect(late, 3 * WIDE_BYTES)
        bring(hidden_bar, [here, 0], late, units[0])
        bring(read_inputs, [here, 0], late, read_input_room)
        bring(read_outputs_bar, [here, 0], late, read_room)

        # Through that of the second, and through the last errors, taken at the chunk's start.
        mbarrier.wait(middle, phase)
        nothing = gl.zeros([CHUNK, WIDTH], gl.float32, narrow)
        direct = warpgroup_mma(
            input_room, matrices[1].index(zero).permute((1, 0)), nothing, use_acc=False, is_async=True
        )
        if MOMENTUM:
            more_2 = warpgroup_mma(
                input_room, matrices[3].index(zero).permute((1, 0)), nothing, use_acc=False, is_async=True
            )
        error_bar = warpgroup_mma(u_room, second_room.permute((1, 0)), nothing, use_acc=False, is_async=True)
        if ANCHOR:
            error_bar = warpgroup_mma(u_room, anchor_room.permute((1, 0)), error_bar, is_async=True)
        mbarrier.wait(norms, phase)
        if MOMENTUM:
            direct, more_2, error_bar = warpgroup_mma_wait(0, [direct, more_2, error_bar])
            error_bar -= more_2 * coefficients.index(1).load(down)[:, None]
        else:
            direct, error_bar = warpgroup_mma_wait(0, [direct, error_bar])
        error_bar -= direct * coefficients.index(0).load(down)[:, None]
        error_bar += outputs[0].load(narrow).to(gl.float32)
        normal = normal_room.load(narrow).to(gl.float32)
        value, key = outputs[1].load(narrow).to(gl.float32), key_room.load(narrow).to(gl.float32)
        g, s = lent.index(0).load(across)[None, :], lent.index(1).load(across)[None, :]
        scale, limit = coefficients.index(4).load(down)[:, None], coefficients.index(5).load(down)[:, None]
        output_bar, _, _, _ = through_last_error(
            error_bar, normal, scale, key, value, g, s, limit, NORM, RESIDUAL, BIAS, P, 1
        )
        error_bar_room.store(error_bar.to(low))
        normal_room.store(output_bar.to(low))
        fence_async_shared()
        send(errors_bar, [here, 0], error_bar_room)
        mbarrier.expect(last, 2 * NARROW_BYTES)
        bring(queries, [here, 0], last, outputs[0])
        bring(read_last_bar, [here, 0], last, outputs[1])

        # Before the activation.
        error = error_room.load(left_wide).to(gl.float32)
        written = (error * -coefficients.index(0).load(left_down)[:, None]).to(low)
        mbarrier.wait(late, phase)
        x_bar = units[0].load(wide).to(gl.float32)
        x_bar = warpgroup_mma(normal_room, second_room, x_bar, is_async=True)
        if ANCHOR:
            x_bar = warpgroup_mma(normal_room, anchor_room, x_bar, is_async=True)
        x_bar = warpgroup_mma(written, matrices[1].index(zero), x_bar, is_async=True)
        if MOMENTUM:
            written_2 = (error * -coefficients.index(1).load(left_down)[:, None]).to(low)
            x_bar = warpgroup_mma(written_2, matrices[3].index(zero), x_bar, is_async=True)
            x_bar = warpgroup_mma_wait(0, [x_bar, written, written_2])[0]
        else:
            x_bar = warpgroup_mma_wait(0, [x_bar, written])[0]
        x_bar = x_bar * units[1].load(wide).to(gl.float32) + units[2].load(wide).to(gl.float32)
        units[0].store(x_bar.to(low))
        fence_async_shared()
        send(hidden_bar, [here, 0], units[0])

        # The adjoints of what was held at the chunk's start.
        mbarrier.wait(last, phase)
        share = coefficients.index(2).load(left_across)[None, :]
        query = outputs[0].permute((1, 0)).load(left_wide).to(gl.float32)
        last_bar = outputs[1].permute((1, 0)).load(left_wide).to(gl.float32)
        if MOMENTUM:
            carry_share = coefficients.index(3).load(left_across)[None, :]
            velocity, velocity_2 = velocity * velocity_keep + first * carry, velocity_2 * velocity_keep + second * carry
            query_2, last_2 = (query * carry_share).to(low), (last_bar * carry_share).to(low)
            velocity = warpgroup_mma(query_2, read_room, velocity, is_async=True)
            velocity_2 = warpgroup_mma(last_2, read_input_room, velocity_2, is_async=True)
            velocity, velocity_2 = warpgroup_mma_wait(0, [velocity, velocity_2, query_2, last_2])[:2]
        first, second = first * keep, second * keep
        query, last_bar = (query * share).to(low), (last_bar * share).to(low)
        first = warpgroup_mma(query, read_room, first, is_async=True)
        second = warpgroup_mma(last_bar, read_input_room, second, is_async=True)
        first = warpgroup_mma(key_room.permute((1, 0)), units[0], first, is_async=True)
        second = warpgroup_mma(normal_room.permute((1, 0)), input_room, second, is_async=True)
        second = warpgroup_mma(error_room.permute((1, 0)), u_room, second, is_async=True)
        first, second = warpgroup_mma_wait(0, [first, second, query, last_bar])[:2]
    tma.store_wait(0)
    left(held_bar, row * PARTS * WIDTH, first)
    left(held_bar, row * PARTS * WIDTH + WIDTH, second)
    if MOMENTUM:
        left(held_bar, row * PARTS * WIDTH + 2 * WIDTH, velocity)
        left(held_bar, row * PARTS * WIDTH + 3 * WIDTH, velocity_2)


@gluon.jit
def coefficients_of(
    token: gl.tensor,
    end_written: gl.tensor,
    end_velocity_written: gl.tensor,
    kept: gl.tensor,
    carried: gl.tensor,
    scales: gl.tensor,
    threshold: gl.tensor,
    CHUNK: gl.constexpr,
    MOMENTUM: gl.constexpr,
    HUBER: gl.constexpr,
) -> tuple[gl.tensor, ...]:
    """Of a chunk that begins with `token`; what there is not is replaced by what there is."""
    token += gl.arange(0, CHUNK, gl.BlockedLayout([1], [32], [8], [0]))
    write, share, scale = gl.load(end_written + token), gl.load(kept + token), gl.load(scales + token)
    faster = gl.load(end_velocity_written + token) if MOMENTUM else write
    carry = gl.load(carried + token) if MOMENTUM else write
    return write, faster, share, carry, scale, gl.load(threshold + token) if HUBER else write
