"""The adjoints of all reads on Hopper, in Gluon, by what `hopper_reading` shares: what was read is found once more."""

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
from lockstep.kernels.memory.heads import normalised, through_norm
from lockstep.kernels.memory.hopper_reading import answered, asked, fetch_first, fetch_second
from lockstep.kernels.memory.hopper_tiles import (
    Room,
    Rooms,
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
def read_backward_kernel(
    queries: Sheet,  # [rows × time, WIDTH]
    keys: Sheet,
    reads_bar: Sheet,
    gain: gl.tensor,  # [heads, WIDTH]
    kept: gl.tensor,  # [rows, time]
    carried: gl.tensor,
    written: Sheet,  # [rows × time, CHUNK]
    anchors: Sheet,  # [heads or rows × 2 × WIDTH, HIDDEN]
    copies: Sheet,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    inputs: Sheet,  # [rows × time, HIDDEN]
    first_errors: Sheet,
    last_errors: Sheet,  # [rows × time, WIDTH]
    read_inputs: Sheet,  # [rows × time, HIDDEN]; what follows is what comes out
    read_outputs_bar: Sheet,
    read_last_bar: Sheet,  # [rows × time, WIDTH]
    first_errors_bar: Sheet,  # [rows × time, HIDDEN]: adjoints of what was written
    last_errors_bar: Sheet,  # [rows × time, WIDTH]
    inputs_bar: Sheet,  # [rows × time, HIDDEN]
    keys_bar: Sheet,  # [rows × time, WIDTH]
    queries_bar: Sheet,
    kept_bar: gl.tensor,  # [rows, time]
    carried_bar: gl.tensor,
    written_bar: Sheet,  # [rows × time, CHUNK]
    gain_bar: gl.tensor,  # [rows, chunks, WIDTH]
    shift_bar: gl.tensor,
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
    left: gl.constexpr = gl.DotOperandLayout(0, wide, 2)
    down: gl.constexpr = gl.SliceLayout(1, narrow)
    across: gl.constexpr = gl.SliceLayout(0, narrow)
    low: gl.constexpr = keys.dtype
    PARTS: gl.constexpr = 4 if MOMENTUM else 2
    VELOCITIES: gl.constexpr = 2 if MOMENTUM else 1
    # Rooms: what the first matrix and what the second takes, and what is made of it.
    narrows = rooms(keys, 9)
    wides = rooms(inputs, 3 + 2 * VELOCITIES + 2 * ANCHOR)
    loaded = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    for barrier in gl.static_range(4):
        mbarrier.init(loaded.index(barrier), count=1)
    fence_async_shared()
    if ANCHOR:
        anchor, anchor_phase = -1, 1

    begin, end = own_chunks(total)
    fetch_first(
        queries, keys, first_errors, copies, narrows, wides, loaded.index(0), begin, begin < end, CHUNK, WIDTH,
        PARTS, VELOCITIES,
    )  # fmt: skip
    fetch_second(
        written, last_errors, inputs, copies, narrows, wides, loaded.index(1), begin, begin < end, CHUNK, WIDTH,
        PARTS, VELOCITIES,
    )  # fmt: skip
    fetch_bar(reads_bar, narrows, loaded.index(3), begin, begin < end, CHUNK)
    for chunk in range(begin, end):
        zero = unknown_zero(chunk)
        query_room, key_room, share_room = narrows[0].index(zero), narrows[1].index(zero), narrows[2].index(zero)
        error_room, bar_room, last_room = narrows[3].index(zero), narrows[4].index(zero), narrows[5].index(zero)
        scores_room, scores_2_room = narrows[6].index(zero), narrows[7].index(zero)
        scores_bar_room, read_room = narrows[8].index(zero), wides[0].index(zero)
        first_room, input_room, first, second = (
            wides[1].index(zero),
            wides[2].index(zero),
            wides[3].index(zero),
            wides[4].index(zero),
        )
        # What there is not is called by the name of what there is.
        velocity, velocity_2, anchor_1, anchor_2 = first, second, first, second
        if MOMENTUM:
            velocity, velocity_2 = wides[5].index(zero), wides[6].index(zero)
        if ANCHOR:
            anchor_1, anchor_2 = wides[3 + 2 * VELOCITIES].index(zero), wides[4 + 2 * VELOCITIES].index(zero)
        row = chunk // chunks
        here, phase = chunk * CHUNK, (chunk - begin) & 1
        token = here + gl.arange(0, CHUNK, down)
        share = gl.load(kept + token)
        share_left = gl.convert_layout(share, gl.SliceLayout(1, left))[:, None]
        share = share[:, None]
        carry, carry_left = share, share_left
        if MOMENTUM:
            carry = gl.load(carried + token)
            carry_left = gl.convert_layout(carry, gl.SliceLayout(1, left))[:, None]
            carry = carry[:, None]
        g = gl.load(gain + (row % heads) * WIDTH + gl.arange(0, WIDTH, across))[None, :] if NORM else 1.0
        if ANCHOR:
            if anchor != row % anchor_rows:
                anchor, anchor_phase = row % anchor_rows, anchor_phase ^ 1
                fetch_anchors(anchors, anchor, loaded.index(2), anchor_1, anchor_2, anchor_phase, WIDTH)

        # What was read, once more.
        mbarrier.wait(loaded.index(0), phase)
        mbarrier.wait(loaded.index(1), phase)
        none = gl.zeros([CHUNK, WIDTH], gl.float32, narrow)
        no_units = gl.zeros([CHUNK, HIDDEN], gl.float32, wide)
        found = asked(
            query_room, key_room, share_room, scores_room, first_room, first, velocity, anchor_1, share_left,
            carry_left, none, no_units, MOMENTUM, ANCHOR,
        )  # fmt: skip
        read, slope = activated_and_slope(found, ACTIVATION)
        slope = slope.to(low)
        tma.store_wait(0)
        read_room.store(read.to(low))
        fence_async_shared()
        send(read_inputs, [here, 0], read_room)
        scores_2, kept_answer, carried_answer, answer = answered(
            read_room, share_room, scores_2_room, input_room, error_room, second, velocity_2, anchor_2, share, carry,
            none, MOMENTUM, ANCHOR,
        )  # fmt: skip
        normal, scale = normalised(answer, NORM, 1)

        # Back through the last matrix's own words.
        mbarrier.wait(loaded.index(3), phase)
        bar = bar_room.load(narrow).to(gl.float32)
        last_bar = bar
        if NORM:
            wide_row = chunk * WIDTH + gl.arange(0, WIDTH, across)
            gl.store(gain_bar + wide_row, gl.sum(bar * normal, 0))
            gl.store(shift_bar + wide_row, gl.sum(bar, 0))
            last_bar = through_norm(bar * g, normal, scale, NORM, 1)
        bar = bar.to(low)
        last_room.store(last_bar.to(low))
        fence_async_shared()
        # How much was kept is asked of all that was: of answers here, of queries below.
        share_bar = gl.sum(last_bar * kept_answer, 1)
        if MOMENTUM:
            carry_bar = gl.sum(last_bar * carried_answer, 1)
        send(read_last_bar, [here, 0], last_room)
        scores_bar = warpgroup_mma(last_room, error_room.permute((1, 0)), none, use_acc=False)
        shares_bar = scores_bar * -scores_2
        scores_bar_room.store((scores_bar * -share_room.load(narrow).to(gl.float32)).to(low))
        fence_async_shared()
        last_back = warpgroup_mma(scores_2_room.permute((1, 0)), last_room, none, use_acc=False, is_async=True)
        units_bar = warpgroup_mma(scores_bar_room.permute((1, 0)), read_room, no_units, use_acc=False, is_async=True)
        last_left = last_room.load(left).to(gl.float32)
        kept_last = (last_left * share_left).to(low)
        back = warpgroup_mma(kept_last, second, no_units, use_acc=False, is_async=True)
        back = warpgroup_mma(scores_bar_room, input_room, back, is_async=True)
        if ANCHOR:
            back = warpgroup_mma(last_room, anchor_2, back, is_async=True)
        if MOMENTUM:
            carried_last = (last_left * carry_left).to(low)
            back = warpgroup_mma(carried_last, velocity_2, back, is_async=True)
            last_back, units_bar, back = warpgroup_mma_wait(0, [last_back, units_bar, back, kept_last, carried_last])[
                :3
            ]
        else:
            last_back, units_bar, back = warpgroup_mma_wait(0, [last_back, units_bar, back, kept_last])[:3]
        bar_room.store(last_back.to(low))
        second.store(units_bar.to(low))
        back = back * slope.to(gl.float32)
        tma.store_wait(0)
        read_room.store(back.to(low))
        fence_async_shared()
        send(read_outputs_bar, [here, 0], read_room)
        send(last_errors_bar, [here, 0], bar_room)
        send(inputs_bar, [here, 0], second)

        # And back through the first: what of it was written, kept and carried on.
        units_bar = warpgroup_mma(scores_room.permute((1, 0)), read_room, no_units, use_acc=False, is_async=True)
        scores_bar = warpgroup_mma(read_room, first_room.permute((1, 0)), none, use_acc=False, is_async=True)
        scores = warpgroup_mma(query_room, key_room.permute((1, 0)), none, use_acc=False, is_async=True)
        kept_bars = warpgroup_mma(read_room, first.permute((1, 0)), none, use_acc=False, is_async=True)
        query = query_room.load(narrow).to(gl.float32)
        if MOMENTUM:
            carried_bars = warpgroup_mma(read_room, velocity.permute((1, 0)), none, use_acc=False, is_async=True)
            units_bar, scores_bar, scores, kept_bars, carried_bars = warpgroup_mma_wait(
                0, [units_bar, scores_bar, scores, kept_bars, carried_bars]
            )
            query_bar = kept_bars * share + carried_bars * carry
            gl.store(carried_bar + token, carry_bar + gl.sum(query * carried_bars, 1))
        else:
            units_bar, scores_bar, scores, kept_bars = warpgroup_mma_wait(0, [units_bar, scores_bar, scores, kept_bars])
            query_bar = kept_bars * share
        gl.store(kept_bar + token, share_bar + gl.sum(query * kept_bars, 1))
        first_room.store(units_bar.to(low))
        scores_bar_room.store((scores_bar * -share_room.load(narrow).to(gl.float32)).to(low))
        scores_room.store((shares_bar - scores_bar * scores).to(low))
        fence_async_shared()
        tma.store_wait(0)
        send(first_errors_bar, [here, 0], first_room)
        send(written_bar, [here, 0], scores_room)
        fetch_second(
            written, last_errors, inputs, copies, narrows, wides, loaded.index(1), chunk + 1, chunk + 1 < end, CHUNK,
            WIDTH, PARTS, VELOCITIES,
        )  # fmt: skip
        fetch_bar(reads_bar, narrows, loaded.index(3), chunk + 1, chunk + 1 < end, CHUNK)
        if RESIDUAL:
            query_bar += bar.to(gl.float32)
        key_bar = warpgroup_mma(scores_bar_room.permute((1, 0)), query_room, none, use_acc=False, is_async=True)
        query_bar = warpgroup_mma(scores_bar_room, key_room, query_bar, is_async=True)
        if ANCHOR:
            query_bar = warpgroup_mma(read_room, anchor_1.permute((1, 0)), query_bar, is_async=True)
        key_bar, query_bar = warpgroup_mma_wait(0, [key_bar, query_bar])
        scores_2_room.store(key_bar.to(low))
        last_room.store(query_bar.to(low))
        fence_async_shared()
        tma.store_wait(0)
        send(keys_bar, [here, 0], scores_2_room)
        send(queries_bar, [here, 0], last_room)
        fetch_first(
            queries, keys, first_errors, copies, narrows, wides, loaded.index(0), chunk + 1, chunk + 1 < end, CHUNK,
            WIDTH, PARTS, VELOCITIES,
        )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def fetch_bar(
    reads_bar: Sheet, narrows: Rooms, loaded: Room, chunk: gl.tensor, wanted: gl.tensor, CHUNK: gl.constexpr
) -> None:
    mbarrier.expect(loaded, reads_bar.block_type.nbytes, pred=wanted)
    bring(reads_bar, [chunk * CHUNK, 0], loaded, narrows[4].index(0), pred=wanted)
