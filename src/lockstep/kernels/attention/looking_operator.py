"""The kernels of `looking`, as one operator."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.attention.looking import SLOTS, parts
from lockstep.kernels.attention.reads import LOG2_E, LOWEST
from lockstep.kernels.record import record

NAME = "look"


@triton.jit
def look_kernel(
    queries: tl.tensor,  # [batch, kv_heads, GROUP, WIDTH]
    keys: tl.tensor,  # [batch, kv_heads, slots, WIDTH]
    values: tl.tensor,
    seen: tl.tensor,  # [batch, slots]
    found: tl.tensor,  # [batch, kv_heads, GROUP, parts, WIDTH] in 32 bits; what follows is what comes out
    tops: tl.tensor,  # [batch, kv_heads, GROUP, parts]: the highest score, as a power of two
    totals: tl.tensor,  # the same: sums of powers, relative to it
    kv_heads: int,
    slots: int,
    parts: int,
    size: int,
    GROUP: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One program is one part of one head of keys, for all heads of queries that share it."""
    row, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    SCALE: tl.constexpr = WIDTH**-0.5 * LOG2_E
    wide = tl.arange(0, WIDTH)
    keys += row * slots * WIDTH
    values += row * slots * WIDTH
    seen += (row // kv_heads) * slots
    for member in tl.static_range(GROUP):
        head = row * GROUP + member
        query = tl.load(queries + head * WIDTH + wide).to(tl.float32)[None, :] * SCALE
        top = LOWEST + tl.zeros([SLOTS], tl.float32)
        total = tl.zeros([SLOTS], tl.float32)
        read = tl.zeros([SLOTS, WIDTH], tl.float32)
        # Each place of a tile has a softmax of its own: what meets is joined once, behind the loop.
        for tile in range(part * size, part * size + size):
            slot = tile * SLOTS + tl.arange(0, SLOTS)
            there = tl.load(seen + slot, mask=slot < slots, other=0) != 0
            where = slot.to(tl.int64)[:, None] * WIDTH + wide[None, :]
            key = tl.load(keys + where, mask=there[:, None], other=0.0).to(tl.float32)
            value = tl.load(values + where, mask=there[:, None], other=0.0).to(tl.float32)
            score = tl.where(there, tl.sum(query * key, axis=1), LOWEST)
            higher = tl.maximum(top, score)
            fading, weight = tl.exp2(top - higher), tl.where(there, tl.exp2(score - higher), 0.0)
            read = read * fading[:, None] + weight[:, None] * value
            total = total * fading + weight
            top = higher
        highest = tl.max(top, axis=0)
        share = tl.exp2(top - highest)
        tl.store(found + (head * parts + part) * WIDTH + wide, tl.sum(read * share[:, None], axis=0))
        tl.store(tops + head * parts + part, highest)
        tl.store(totals + head * parts + part, tl.sum(total * share, axis=0))


@triton.jit
def join_kernel(
    found: tl.tensor,  # [rows, parts, WIDTH]
    tops: tl.tensor,  # [rows, parts]
    totals: tl.tensor,
    reads: tl.tensor,  # [rows, WIDTH]: what comes out
    parts: int,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One program is one head of one sample."""
    row, part = tl.program_id(0), tl.arange(0, PARTS)
    there, wide = part < parts, tl.arange(0, WIDTH)
    top = tl.load(tops + row * parts + part, mask=there, other=LOWEST)
    share = tl.exp2(top - tl.max(top, axis=0))
    total = tl.sum(share * tl.load(totals + row * parts + part, mask=there, other=0.0), axis=0)
    where = (row * parts + part)[:, None] * WIDTH + wide[None, :]
    read = tl.sum(tl.load(found + where, mask=there[:, None], other=0.0) * share[:, None], axis=0)
    tl.store(reads + row * WIDTH + wide, (read / total).to(reads.dtype.element_ty))


@torch.library.custom_op("lockstep::look", mutates_args=())
def look(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Reads [batch, heads, width] of queries like them, as `looking.run` says; everything is in one piece."""
    record(NAME)
    (batch, heads, width), (kv_heads, slots) = queries.shape, keys.shape[1:3]
    count, size = parts(batch, kv_heads, slots)
    found = queries.new_empty(batch * heads, count, width, dtype=torch.float32)
    tops, totals = (queries.new_empty(batch * heads, count, dtype=torch.float32) for _ in range(2))
    look_kernel[(batch * kv_heads * count,)](
        queries,
        keys,
        values,
        seen.view(torch.int8),
        found,
        tops,
        totals,
        kv_heads,
        slots,
        count,
        size,
        GROUP=heads // kv_heads,
        SLOTS=SLOTS,
        WIDTH=width,
        num_warps=4,
    )
    reads = torch.empty_like(queries)
    several = {"PARTS": triton.next_power_of_2(count), "WIDTH": width, "num_warps": 4}
    join_kernel[(batch * heads,)](found, tops, totals, reads, count, **several)
    return reads


@look.register_fake
def _(queries: Tensor, *_: Tensor) -> Tensor:
    return torch.empty_like(queries)
