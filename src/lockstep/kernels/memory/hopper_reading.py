"""All reads on Hopper, in Gluon: `reading` says what is computed, this file when and where.

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

from lockstep.kernels.memory.activations import activate
from lockstep.kernels.memory.heads import normalised, said
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
def read_kernel(
    queries: Sheet,  # [rows × time, WIDTH]
    keys: Sheet,
    gain: gl.tensor,  # [heads, WIDTH]
    shift: gl.tensor,
    kept: gl.tensor,  # [rows, time]
    carried: gl.tensor,
    written: Sheet,  # [rows × time, CHUNK]
    anchors: Sheet,  # [heads or rows × 2 × WIDTH, HIDDEN]
    copies: Sheet,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    inputs: Sheet,  # [rows × time, HIDDEN]: what was written
    first_errors: Sheet,
    last_errors: Sheet,  # [rows × time, WIDTH]
    reads: Sheet,
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
    narrows = rooms(keys, 6)
    wides = rooms(inputs, 3 + 2 * VELOCITIES + 2 * ANCHOR)
    loaded = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for barrier in gl.static_range(3):
        mbarrier.init(loaded.index(barrier), count=1)
    fence_async_shared()
    if ANCHOR:
        anchor, anchor_phase = -1, 1

    begin, end = own_chunks(total)
    fetch_first(
        queries, keys, first_errors, copies, narrows, wides, loaded.index(0), begin, begin < end, CHUNK, WIDTH, PARTS,
        VELOCITIES,
    )  # fmt: skip
    fetch_second(
        written, last_errors, inputs, copies, narrows, wides, loaded.index(1), begin, begin < end, CHUNK, WIDTH, PARTS,
        VELOCITIES,
    )  # fmt: skip
    for chunk in range(begin, end):
        zero = unknown_zero(chunk)
        query_room, key_room, share_room = narrows[0].index(zero), narrows[1].index(zero), narrows[2].index(zero)
        error_room, scores_room, out_room = narrows[3].index(zero), narrows[4].index(zero), narrows[5].index(zero)
        read_room, first_room, input_room = wides[0].index(zero), wides[1].index(zero), wides[2].index(zero)
        first, second = wides[3].index(zero), wides[4].index(zero)
        # What there is not is called by the name of what there is.
        velocity, velocity_2, anchor_1, anchor_2 = first, second, first, second
        if MOMENTUM:
            velocity, velocity_2 = wides[5].index(zero), wides[6].index(zero)
        if ANCHOR:
            anchor_1, anchor_2 = wides[3 + 2 * VELOCITIES].index(zero), wides[4 + 2 * VELOCITIES].index(zero)
        row, here, phase = chunk // chunks, chunk * CHUNK, (chunk - begin) & 1
        token, place = here + gl.arange(0, CHUNK, down), (row % heads) * WIDTH + gl.arange(0, WIDTH, across)
        share = gl.load(kept + token)
        share_left = gl.convert_layout(share, gl.SliceLayout(1, left))[:, None]
        share = share[:, None]
        carry, carry_left = share, share_left
        if MOMENTUM:
            carry = gl.load(carried + token)
            carry_left = gl.convert_layout(carry, gl.SliceLayout(1, left))[:, None]
            carry = carry[:, None]
        g = gl.load(gain + place)[None, :] if NORM else 1.0
        s = gl.load(shift + place)[None, :] if NORM else 0.0
        if ANCHOR:
            if anchor != row % anchor_rows:
                anchor, anchor_phase = row % anchor_rows, anchor_phase ^ 1
                fetch_anchors(anchors, anchor, loaded.index(2), anchor_1, anchor_2, anchor_phase, WIDTH)

        mbarrier.wait(loaded.index(0), phase)
        mbarrier.wait(loaded.index(1), phase)
        none = gl.zeros([CHUNK, WIDTH], gl.float32, narrow)
        no_units = gl.zeros([CHUNK, HIDDEN], gl.float32, wide)
        found = asked(
            query_room, key_room, share_room, scores_room, first_room, first, velocity, anchor_1, share_left,
            carry_left, none, no_units, MOMENTUM, ANCHOR,
        )  # fmt: skip
        query = query_room.load(narrow).to(gl.float32)
        fetch_first(
            queries, keys, first_errors, copies, narrows, wides, loaded.index(0), chunk + 1, chunk + 1 < end, CHUNK,
            WIDTH, PARTS, VELOCITIES,
        )  # fmt: skip
        read_room.store(activate(found, ACTIVATION).to(low))
        fence_async_shared()
        _, _, _, answer = answered(
            read_room, share_room, scores_room, input_room, error_room, second, velocity_2, anchor_2, share, carry,
            none, MOMENTUM, ANCHOR,
        )  # fmt: skip
        fetch_second(
            written, last_errors, inputs, copies, narrows, wides, loaded.index(1), chunk + 1, chunk + 1 < end, CHUNK,
            WIDTH, PARTS, VELOCITIES,
        )  # fmt: skip
        normal, _ = normalised(answer, NORM, 1)
        tma.store_wait(0)
        out_room.store(said(normal, query, g, s, NORM, RESIDUAL).to(low))
        fence_async_shared()
        send(reads, [here, 0], out_room)
    tma.store_wait(0)


@gluon.jit
def asked(
    query_room: Room,
    key_room: Room,
    share_room: Room,
    scores_room: Room,
    first_room: Room,
    first: Room,
    velocity: Room,
    anchor: Room,
    share: gl.tensor,
    carry: gl.tensor,
    none: gl.tensor,
    no_units: gl.tensor,
    MOMENTUM: gl.constexpr,
    ANCHOR: gl.constexpr,
) -> gl.tensor:
    """What queries find with the first matrix [CHUNK, HIDDEN]; scores stay in their room."""
    low: gl.constexpr = query_room.dtype
    narrow: gl.constexpr = none.type.layout
    left: gl.constexpr = gl.DotOperandLayout(0, no_units.type.layout, 2)
    scores = warpgroup_mma(query_room, key_room.permute((1, 0)), none, use_acc=False)
    scores_room.store((scores * -share_room.load(narrow).to(gl.float32)).to(low))
    fence_async_shared()
    query = query_room.load(left).to(gl.float32)
    kept_query = (query * share).to(low)
    found = warpgroup_mma(kept_query, first, no_units, use_acc=False, is_async=True)
    if ANCHOR:
        found = warpgroup_mma(query_room, anchor, found, is_async=True)
    if MOMENTUM:
        carried_query = (query * carry).to(low)
        found = warpgroup_mma(carried_query, velocity, found, is_async=True)
        found = warpgroup_mma_wait(0, [found, kept_query, carried_query])[0]
    else:
        found = warpgroup_mma_wait(0, [found, kept_query])[0]
    return warpgroup_mma(scores_room, first_room, found)


@gluon.jit
def answered(
    read_room: Room,
    share_room: Room,
    scores_room: Room,
    input_room: Room,
    error_room: Room,
    second: Room,
    velocity: Room,
    anchor: Room,
    share: gl.tensor,
    carry: gl.tensor,
    none: gl.tensor,
    MOMENTUM: gl.constexpr,
    ANCHOR: gl.constexpr,
) -> tuple[gl.tensor, ...]:
    """Scores of what was found, what the second matrix and its velocity say to it, and all of the answer."""
    low: gl.constexpr = read_room.dtype
    narrow: gl.constexpr = none.type.layout
    scores = warpgroup_mma(read_room, input_room.permute((1, 0)), none, use_acc=False, is_async=True)
    kept_answer = warpgroup_mma(read_room, second.permute((1, 0)), none, use_acc=False, is_async=True)
    if MOMENTUM:
        carried_answer = warpgroup_mma(read_room, velocity.permute((1, 0)), none, use_acc=False, is_async=True)
        scores, kept_answer, carried_answer = warpgroup_mma_wait(0, [scores, kept_answer, carried_answer])
        answer = kept_answer * share + carried_answer * carry
    else:
        scores, kept_answer = warpgroup_mma_wait(0, [scores, kept_answer])
        carried_answer = kept_answer
        answer = kept_answer * share
    scores_room.store((scores * -share_room.load(narrow).to(gl.float32)).to(low))
    fence_async_shared()
    answer = warpgroup_mma(scores_room, error_room, answer, is_async=True)
    if ANCHOR:
        answer = warpgroup_mma(read_room, anchor.permute((1, 0)), answer, is_async=True)
    return scores, kept_answer, carried_answer, warpgroup_mma_wait(0, [answer])


@gluon.jit
def fetch_first(
    queries: Sheet,
    keys: Sheet,
    first_errors: Sheet,
    copies: Sheet,
    narrows: Rooms,
    wides: Rooms,
    loaded: Room,
    chunk: gl.tensor,
    wanted: gl.tensor,
    CHUNK: gl.constexpr,
    WIDTH: gl.constexpr,
    PARTS: gl.constexpr,
    VELOCITIES: gl.constexpr,
) -> None:
    """What a chunk's reads take of the first matrix, on its way."""
    matrices: gl.constexpr = VELOCITIES * copies.block_type.nbytes
    mbarrier.expect(loaded, 2 * keys.block_type.nbytes + first_errors.block_type.nbytes + matrices, pred=wanted)
    here, copy = chunk * CHUNK, chunk * PARTS * WIDTH
    bring(queries, [here, 0], loaded, narrows[0].index(0), pred=wanted)
    bring(keys, [here, 0], loaded, narrows[1].index(0), pred=wanted)
    for part in gl.static_range(VELOCITIES):
        place = copy + 2 * part * WIDTH
        bring(copies, [place, 0], loaded, wides[3 + 2 * part].index(0), pred=wanted)
    bring(first_errors, [here, 0], loaded, wides[1].index(0), pred=wanted)


@gluon.jit
def fetch_second(
    written: Sheet,
    last_errors: Sheet,
    inputs: Sheet,
    copies: Sheet,
    narrows: Rooms,
    wides: Rooms,
    loaded: Room,
    chunk: gl.tensor,
    wanted: gl.tensor,
    CHUNK: gl.constexpr,
    WIDTH: gl.constexpr,
    PARTS: gl.constexpr,
    VELOCITIES: gl.constexpr,
) -> None:
    """The same for the second, and the shares of both."""
    matrices: gl.constexpr = VELOCITIES * copies.block_type.nbytes
    mbarrier.expect(loaded, 2 * last_errors.block_type.nbytes + inputs.block_type.nbytes + matrices, pred=wanted)
    here, copy = chunk * CHUNK, chunk * PARTS * WIDTH + WIDTH
    bring(written, [here, 0], loaded, narrows[2].index(0), pred=wanted)
    bring(last_errors, [here, 0], loaded, narrows[3].index(0), pred=wanted)
    bring(inputs, [here, 0], loaded, wides[2].index(0), pred=wanted)
    for part in gl.static_range(VELOCITIES):
        place = copy + 2 * part * WIDTH
        bring(copies, [place, 0], loaded, wides[4 + 2 * part].index(0), pred=wanted)
