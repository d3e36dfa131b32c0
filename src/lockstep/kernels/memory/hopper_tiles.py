"""Tiles on Hopper: how eight warps share them, where they wait in shared memory, and who takes which chunks.

A kernel's rooms are asked for by a number that the compiler does not know, though it is always their own (`unknown`
zero): descriptors of operands would otherwise be made before the loop, all of them, and there is no room for that many.
"""

from __future__ import annotations

from typing import TypeAlias

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

Sheet: TypeAlias = tma.tensor_descriptor
"""A tensor in memory as a sheet of tiles."""
bring = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""A tile of a sheet on its way to a room; newer Triton has other names for this and the next."""
send = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
Room: TypeAlias = gl.shared_memory_descriptor
"""For a tile, or for several, in shared memory."""
Rooms: TypeAlias = gl.tuple


@gluon.constexpr_function
def shared_by_warps(columns):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201 - numbers at compile time
    """Of a tile [64, columns]: four warps down, two across."""
    return gl.NVMMADistributedLayout([3, 0], [4, 2], [16, columns // 2, 16])


@gluon.jit
def room(sheet: Sheet) -> Room:
    """For one tile of a sheet, [1, …]: apart from others, because who waits for a room waits for all of its kind."""
    rows: gl.constexpr = sheet.block_type.shape[0]
    columns: gl.constexpr = sheet.block_type.shape[1]
    return gl.allocate_shared_memory(sheet.dtype, [1, rows, columns], sheet.layout)


@gluon.jit
def rooms(sheet: Sheet, COUNT: gl.constexpr) -> Rooms:
    """So many."""
    made: Rooms = (room(sheet),)
    for _ in gl.static_range(COUNT - 1):
        made = made + (room(sheet),)  # noqa: RUF005 - the compiler knows no other way
    return made


@gluon.jit
def own_chunks(total: int) -> tuple[gl.tensor, gl.tensor]:
    """Where this program's share of all chunks begins and ends."""
    programs, program = gl.num_programs(0), gl.program_id(0)
    return program * total // programs, (program + 1) * total // programs


@gluon.jit
def unknown_zero(chunk: gl.tensor) -> gl.tensor:
    """Of a number that is not negative, which the compiler does not know."""
    return chunk >> 31


@gluon.jit
def fetch_anchors(
    anchors: Sheet, anchor: gl.tensor, loaded: Room, first: Room, second: Room, phase: gl.tensor, WIDTH: gl.constexpr
) -> None:
    """Both, and that they are there."""
    mbarrier.expect(loaded, 2 * anchors.block_type.nbytes)
    bring(anchors, [anchor * 2 * WIDTH, 0], loaded, first)
    bring(anchors, [anchor * 2 * WIDTH + WIDTH, 0], loaded, second)
    mbarrier.wait(loaded, phase)
