"""The adjoints of all reads on Hopper, in Gluon: `reading` says what is computed, this file when and where.

As many programs as there are multiprocessors, each with its share of the chunks one after the other: tiles of the next
chunk are on their way as soon as those of this one are no longer needed.
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
from lockstep.kernels.memory.heads import normalised, through_norm


@gluon.jit
def read_backward_kernel(
    queries,  # [rows × time, WIDTH]
    keys,
    reads_bar,
    gain,  # [heads, WIDTH]
    kept,  # [rows, time]
    carried,
    written,  # [rows × time, CHUNK]
    anchors,  # [heads or rows × 2 × WIDTH, HIDDEN]
    copies,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    inputs,  # [rows × time, HIDDEN]
    first_errors,
    last_errors,  # [rows × time, WIDTH]
    read_inputs,  # [rows × time, HIDDEN]; what follows is what comes out
    read_outputs_bar,
    read_last_bar,  # [rows × time, WIDTH]
    first_errors_bar,  # [rows × time, HIDDEN]: adjoints of what was written
    last_errors_bar,  # [rows × time, WIDTH]
    inputs_bar,  # [rows × time, HIDDEN]
    keys_bar,  # [rows × time, WIDTH]
    queries_bar,
    kept_bar,  # [rows, time]
    carried_bar,
    written_bar,  # [rows × time, CHUNK]
    gain_bar,  # [rows, chunks, WIDTH]
    shift_bar,
    heads,
    anchor_rows,
    chunks,
    total,
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
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, HIDDEN // 2, 16])
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, WIDTH // 2, 16])
    down: gl.constexpr = gl.SliceLayout(1, narrow)
    across: gl.constexpr = gl.SliceLayout(0, narrow)
    low: gl.constexpr = keys.dtype
    PARTS: gl.constexpr = 4 if MOMENTUM else 2
    VELOCITIES: gl.constexpr = 2 if MOMENTUM else 1
    # Rooms: what the first matrix and what the second takes, and what is made of it.
    narrows = gl.allocate_shared_memory(low, [9, CHUNK, WIDTH], keys.layout)
    wides = gl.allocate_shared_memory(low, [3 + 2 * VELOCITIES + 2 * ANCHOR, CHUNK, HIDDEN], inputs.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for barrier in gl.static_range(3):
        mbarrier.init(loaded.index(barrier), count=1)
    fence_async_shared()
    if ANCHOR:
        anchor, anchor_phase = -1, 1

    programs = gl.num_programs(0)
    begin, end = gl.program_id(0) * total // programs, (gl.program_id(0) + 1) * total // programs
    fetch_first(
        queries,
        keys,
        written,
        first_errors,
        copies,
        narrows,
        wides,
        loaded.index(0),
        begin,
        begin < end,
        CHUNK,
        WIDTH,
        PARTS,
        VELOCITIES,
    )
    fetch_second(
        last_errors,
        reads_bar,
        inputs,
        copies,
        narrows,
        wides,
        loaded.index(1),
        begin,
        begin < end,
        CHUNK,
        WIDTH,
        PARTS,
        VELOCITIES,
    )
    for chunk in range(begin, end):
        zero = chunk >> 31
        query_room, key_room, share_room = narrows.index(zero), narrows.index(zero + 1), narrows.index(zero + 2)
        error_room, bar_room, last_room = narrows.index(zero + 3), narrows.index(zero + 4), narrows.index(zero + 5)
        scores_room, scores_2_room = narrows.index(zero + 6), narrows.index(zero + 7)
        scores_bar_room, read_room = narrows.index(zero + 8), wides.index(zero)
        first_room, input_room, first, second = (
            wides.index(zero + 1),
            wides.index(zero + 2),
            wides.index(zero + 3),
            wides.index(zero + 4),
        )
        if MOMENTUM:
            velocity, velocity_2 = wides.index(zero + 5), wides.index(zero + 6)
        if ANCHOR:
            anchor_1, anchor_2 = wides.index(zero + 3 + 2 * VELOCITIES), wides.index(zero + 4 + 2 * VELOCITIES)
        row = chunk // chunks
        here, phase = chunk * CHUNK, (chunk - begin) & 1
        token = here + gl.arange(0, CHUNK, down)
        share = gl.load(kept + token)
        carry = gl.load(carried + token) if MOMENTUM else share
        share_wide = gl.convert_layout(share, gl.SliceLayout(1, wide))[:, None]
        carry_wide = gl.convert_layout(carry, gl.SliceLayout(1, wide))[:, None]
        share, carry = share[:, None], carry[:, None]
        g = gl.load(gain + (row % heads) * WIDTH + gl.arange(0, WIDTH, across))[None, :] if NORM else 1.0
        if ANCHOR:
            if anchor != row % anchor_rows:
                anchor, anchor_phase = row % anchor_rows, anchor_phase ^ 1
                mbarrier.expect(loaded.index(2), 2 * anchors.block_type.nbytes)
                tma.async_copy_global_to_shared(anchors, [anchor * 2 * WIDTH, 0], loaded.index(2), anchor_1)
                tma.async_copy_global_to_shared(anchors, [anchor * 2 * WIDTH + WIDTH, 0], loaded.index(2), anchor_2)
                mbarrier.wait(loaded.index(2), anchor_phase)

        # What was read, once more.
        mbarrier.wait(loaded.index(0), phase)
        none = gl.zeros([CHUNK, WIDTH], gl.float32, narrow)
        no_units = gl.zeros([CHUNK, HIDDEN], gl.float32, wide)
        scores = warpgroup_mma(query_room, key_room.permute((1, 0)), none, use_acc=False)
        scores_room.store((scores * -share_room.load(narrow).to(gl.float32)).to(low))
        by_share = warpgroup_mma(query_room, first, no_units, use_acc=False, is_async=True)
        if MOMENTUM:
            by_carry = warpgroup_mma(query_room, velocity, no_units, use_acc=False, is_async=True)
            by_share, by_carry = warpgroup_mma_wait(0, [by_share, by_carry])
            found = by_share * share_wide + by_carry * carry_wide
        else:
            found = warpgroup_mma_wait(0, [by_share]) * share_wide
        fence_async_shared()
        found = warpgroup_mma(scores_room, first_room, found)
        if ANCHOR:
            found = warpgroup_mma(query_room, anchor_1, found)
        read, slope = activated_and_slope(found, ACTIVATION)
        slope = slope.to(low)
        tma.store_wait(0)
        read_room.store(read.to(low))
        fence_async_shared()
        tma.async_copy_shared_to_global(read_inputs, [here, 0], read_room)
        mbarrier.wait(loaded.index(1), phase)
        scores_2 = warpgroup_mma(read_room, input_room.permute((1, 0)), none, use_acc=False, is_async=True)
        said_share = warpgroup_mma(read_room, second.permute((1, 0)), none, use_acc=False, is_async=True)
        if MOMENTUM:
            said_carry = warpgroup_mma(read_room, velocity_2.permute((1, 0)), none, use_acc=False, is_async=True)
            scores_2, said_share, said_carry = warpgroup_mma_wait(0, [scores_2, said_share, said_carry])
            answer = said_share * share + said_carry * carry
        else:
            scores_2, said_share = warpgroup_mma_wait(0, [scores_2, said_share])
            answer = said_share * share
        scores_2_room.store((scores_2 * -share_room.load(narrow).to(gl.float32)).to(low))
        fence_async_shared()
        answer = warpgroup_mma(scores_2_room, error_room, answer)
        if ANCHOR:
            answer = warpgroup_mma(read_room, anchor_2.permute((1, 0)), answer)
        normal, scale = normalised(answer, NORM, 1)

        # Back through the last matrix's own words.
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
        tma.async_copy_shared_to_global(read_last_bar, [here, 0], last_room)
        scores_bar = warpgroup_mma(last_room, error_room.permute((1, 0)), none, use_acc=False)
        shares_bar = scores_bar * -scores_2
        scores_bar_room.store((scores_bar * -share_room.load(narrow).to(gl.float32)).to(low))
        fence_async_shared()
        last_back = warpgroup_mma(scores_2_room.permute((1, 0)), last_room, none, use_acc=False)
        bar_room.store(last_back.to(low))
        by_share = warpgroup_mma(last_room, second, no_units, use_acc=False, is_async=True)
        if MOMENTUM:
            by_carry = warpgroup_mma(last_room, velocity_2, no_units, use_acc=False, is_async=True)
        read = read_room.load(wide).to(gl.float32)
        if MOMENTUM:
            by_share, by_carry = warpgroup_mma_wait(0, [by_share, by_carry])
            carry_bar = gl.sum(by_carry * read, 1)
            back = by_share * share_wide + by_carry * carry_wide
        else:
            by_share = warpgroup_mma_wait(0, [by_share])
            back = by_share * share_wide
        share_bar = gl.sum(by_share * read, 1)
        units_bar = warpgroup_mma(scores_bar_room.permute((1, 0)), read_room, no_units, use_acc=False)
        second.store(units_bar.to(low))
        fence_async_shared()
        tma.async_copy_shared_to_global(last_errors_bar, [here, 0], bar_room)
        tma.async_copy_shared_to_global(inputs_bar, [here, 0], second)
        back = warpgroup_mma(scores_bar_room, input_room, back)
        if ANCHOR:
            back = warpgroup_mma(last_room, anchor_2, back)

        # And back through the first: what of it was written, kept and carried on.
        back = back * slope.to(gl.float32)
        tma.store_wait(0)
        fetch_second(
            last_errors,
            reads_bar,
            inputs,
            copies,
            narrows,
            wides,
            loaded.index(1),
            chunk + 1,
            chunk + 1 < end,
            CHUNK,
            WIDTH,
            PARTS,
            VELOCITIES,
        )
        read_room.store(back.to(low))
        fence_async_shared()
        tma.async_copy_shared_to_global(read_outputs_bar, [here, 0], read_room)
        units_bar = warpgroup_mma(scores_room.permute((1, 0)), read_room, no_units, use_acc=False, is_async=True)
        scores_bar = warpgroup_mma(read_room, first_room.permute((1, 0)), none, use_acc=False, is_async=True)
        query_bar = warpgroup_mma(read_room, first.permute((1, 0)), none, use_acc=False, is_async=True)
        by_share = warpgroup_mma(query_room, first, no_units, use_acc=False, is_async=True)
        units_bar, scores_bar, query_bar, by_share = warpgroup_mma_wait(0, [units_bar, scores_bar, query_bar, by_share])
        first_room.store(units_bar.to(low))
        share_bar += gl.sum(by_share * back, 1)
        scores_bar_room.store((scores_bar * -share_room.load(narrow).to(gl.float32)).to(low))
        scores = warpgroup_mma(query_room, key_room.permute((1, 0)), none, use_acc=False)
        shares_bar -= scores_bar * scores
        scores_room.store(shares_bar.to(low))
        fence_async_shared()
        tma.async_copy_shared_to_global(first_errors_bar, [here, 0], first_room)
        tma.async_copy_shared_to_global(written_bar, [here, 0], scores_room)
        query_bar = query_bar * share
        if MOMENTUM:
            carried_query = warpgroup_mma(read_room, velocity.permute((1, 0)), none, use_acc=False, is_async=True)
            by_carry = warpgroup_mma(query_room, velocity, no_units, use_acc=False, is_async=True)
            carried_query, by_carry = warpgroup_mma_wait(0, [carried_query, by_carry])
            query_bar += carried_query * carry
            carry_bar += gl.sum(by_carry * back, 1)
            gl.store(carried_bar + here + gl.arange(0, CHUNK, gl.SliceLayout(1, wide)), carry_bar)
        gl.store(kept_bar + here + gl.arange(0, CHUNK, gl.SliceLayout(1, wide)), share_bar)
        if RESIDUAL:
            query_bar += bar.to(gl.float32)
        key_bar = warpgroup_mma(scores_bar_room.permute((1, 0)), query_room, none, use_acc=False)
        query_bar = warpgroup_mma(scores_bar_room, key_room, query_bar)
        if ANCHOR:
            query_bar = warpgroup_mma(read_room, anchor_1.permute((1, 0)), query_bar)
        scores_2_room.store(key_bar.to(low))
        last_room.store(query_bar.to(low))
        fence_async_shared()
        tma.store_wait(0)
        tma.async_copy_shared_to_global(keys_bar, [here, 0], scores_2_room)
        tma.async_copy_shared_to_global(queries_bar, [here, 0], last_room)
        fetch_first(
            queries,
            keys,
            written,
            first_errors,
            copies,
            narrows,
            wides,
            loaded.index(0),
            chunk + 1,
            chunk + 1 < end,
            CHUNK,
            WIDTH,
            PARTS,
            VELOCITIES,
        )
    tma.store_wait(0)


@gluon.jit
def fetch_first(
    queries,
    keys,
    written,
    first_errors,
    copies,
    narrows,
    wides,
    loaded,
    chunk,
    wanted,
    CHUNK: gl.constexpr,
    WIDTH: gl.constexpr,
    PARTS: gl.constexpr,
    VELOCITIES: gl.constexpr,
) -> None:
    """What a chunk's reads take of the first matrix, on its way."""
    matrices: gl.constexpr = VELOCITIES * copies.block_type.nbytes
    mbarrier.expect(loaded, 3 * keys.block_type.nbytes + first_errors.block_type.nbytes + matrices, pred=wanted)
    here, copy = chunk * CHUNK, chunk * PARTS * WIDTH
    tma.async_copy_global_to_shared(queries, [here, 0], loaded, narrows.index(0), pred=wanted)
    tma.async_copy_global_to_shared(keys, [here, 0], loaded, narrows.index(1), pred=wanted)
    tma.async_copy_global_to_shared(written, [here, 0], loaded, narrows.index(2), pred=wanted)
    for part in gl.static_range(VELOCITIES):
        tma.async_copy_global_to_shared(
            copies, [copy + 2 * part * WIDTH, 0], loaded, wides.index(3 + 2 * part), pred=wanted
        )
    tma.async_copy_global_to_shared(first_errors, [here, 0], loaded, wides.index(1), pred=wanted)


@gluon.jit
def fetch_second(
    last_errors,
    reads_bar,
    inputs,
    copies,
    narrows,
    wides,
    loaded,
    chunk,
    wanted,
    CHUNK: gl.constexpr,
    WIDTH: gl.constexpr,
    PARTS: gl.constexpr,
    VELOCITIES: gl.constexpr,
) -> None:
    """The same for the second."""
    matrices: gl.constexpr = VELOCITIES * copies.block_type.nbytes
    mbarrier.expect(loaded, 2 * last_errors.block_type.nbytes + inputs.block_type.nbytes + matrices, pred=wanted)
    here, copy = chunk * CHUNK, chunk * PARTS * WIDTH + WIDTH
    tma.async_copy_global_to_shared(inputs, [here, 0], loaded, wides.index(2), pred=wanted)
    for part in gl.static_range(VELOCITIES):
        tma.async_copy_global_to_shared(
            copies, [copy + 2 * part * WIDTH, 0], loaded, wides.index(4 + 2 * part), pred=wanted
        )
    tma.async_copy_global_to_shared(last_errors, [here, 0], loaded, narrows.index(3), pred=wanted)
    tma.async_copy_global_to_shared(reads_bar, [here, 0], loaded, narrows.index(4), pred=wanted)
