"""The kernel of `looking`, as one operator."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep.kernels.arrivals import advance, come, counters, is_last
from lockstep.kernels.attention.looking import SLOTS, sharing
from lockstep.kernels.attention.reads import LOG2_E, LOWEST
from lockstep.kernels.record import record
from lockstep.kernels.succession import started
from lockstep.kernels.waiting import await_the_one_before

NAME = "look"
TURN = tl.constexpr(2 * math.pi)


@triton.jit
def within_a_turn(angle: tl.tensor) -> tl.tensor:
    """The same angle, from half a turn back to half a turn ahead.

    Beyond 105,615 a cosine and a sine would find it each for themselves, digit by digit, which takes longer than a
    window does.
    """
    exact = angle.to(tl.float64)
    return (exact - tl.floor(exact * (1 / TURN) + 0.5) * TURN).to(tl.float32)


@triton.jit
def turn_of(place: tl.tensor, rates: tl.tensor, HALF: tl.constexpr, WIDTH: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Cosine and sine [WIDTH] of a place's angles, one and zero behind the first 2 × HALF numbers."""
    wide = tl.arange(0, WIDTH)
    angle = tl.zeros([WIDTH], tl.float32)
    # Not by an early return, behind which Triton would still compile what takes a remainder by zero.
    if HALF > 0:
        angle = place.to(tl.float32) * tl.load(rates + wide % HALF, mask=wide < 2 * HALF, other=0.0)
        angle = within_a_turn(angle)
    return tl.cos(angle), tl.sin(angle)


@triton.jit
def turned(row: tl.tensor, cosine: tl.tensor, sine: tl.tensor, HALF: tl.constexpr, WIDTH: tl.constexpr) -> tl.tensor:
    """A query or key [WIDTH] in 32 bits, its first 2 × HALF numbers turned."""
    wide = tl.arange(0, WIDTH)
    x = tl.load(row + wide).to(tl.float32)
    if HALF > 0:
        left = wide < HALF
        other = tl.load(row + tl.where(left, wide + HALF, wide - HALF), mask=wide < 2 * HALF, other=0.0)
        x = x * cosine + tl.where(left, -other.to(tl.float32), other.to(tl.float32)) * sine
    return x


@triton.jit
def nothing(SLOTS: tl.constexpr, WIDTH: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """What `met` begins with."""
    none = tl.zeros([SLOTS], tl.float32)
    return none + LOWEST, none, tl.zeros([SLOTS, WIDTH], tl.float32)


@triton.jit
def met(
    top: tl.tensor, total: tl.tensor, read: tl.tensor, score: tl.tensor, amount: tl.tensor, value: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Each place of a tile after one more: its highest score, the sum of powers relative to that, and what it has read.

    One more is a key, of amount one, with its value; or a part of the cache, with its own sum and what it has read.
    """
    higher = tl.maximum(top, score)
    fading, power = tl.exp2(top - higher), tl.exp2(score - higher)
    return higher, total * fading + power * amount, read * fading[:, None] + power[:, None] * value


@triton.jit
def read_at_once(
    query: tl.tensor, key: tl.tensor, value: tl.tensor, there: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of a single tile: its highest score, the sum of powers relative to that, and what it has read [WIDTH]."""
    score = tl.where(there, tl.sum(query * key.to(tl.float32), axis=1), LOWEST)
    highest = tl.max(score, axis=0)
    power = tl.where(there, tl.exp2(score - highest), 0.0)
    return highest, tl.sum(power, axis=0), tl.sum(power[:, None] * value.to(tl.float32), axis=0)


@triton.jit
def joined(top: tl.tensor, total: tl.tensor, read: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The same of all places together: two numbers, and [WIDTH]."""
    highest = tl.max(top, axis=0)
    share = tl.exp2(top - highest)
    return highest, tl.sum(total * share, axis=0), tl.sum(read * share[:, None], axis=0)


@triton.jit
def read_of_parts(
    found: tl.tensor,
    tops: tl.tensor,
    totals: tl.tensor,
    first: tl.tensor,
    parts: int,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """What all parts have read together, [WIDTH], from the first of them on."""
    top, total, read = nothing(SLOTS, WIDTH)
    for done in range(0, parts, SLOTS):
        part = done + tl.arange(0, SLOTS)
        there, where = part < parts, first + part
        score = tl.load(tops + where, mask=there, other=LOWEST)
        amount = tl.load(totals + where, mask=there, other=0.0)
        places = where[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        value = tl.load(found + places, mask=there[:, None], other=0.0)
        top, total, read = met(top, total, read, score, amount, value)
    _, whole, answer = joined(top, total, read)
    return answer / whole


@triton.jit
def tile_of(
    keys: tl.tensor,
    values: tl.tensor,
    tile: tl.tensor,
    last: tl.tensor,
    bound: tl.tensor,
    persistent: int,
    length: int,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Its slots, which of them are seen, and their keys and values [SLOTS, WIDTH], zero where they are not.

    Seen is what is up to the `last` slot of a row, and before the `bound` of all.
    """
    slot = tile * SLOTS + tl.arange(0, SLOTS)
    behind = slot - persistent
    there = (tl.where(behind < length, behind, behind - length) if ROWS == 2 else behind) <= last
    there = there & (slot < bound)
    where = slot.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    key = tl.load(keys + where, mask=there[:, None], other=0.0)
    return slot, there, key, tl.load(values + where, mask=there[:, None], other=0.0)


@triton.jit
def with_row(
    key: tl.tensor, value: tl.tensor, here: tl.tensor, new_key: tl.tensor, new_value: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """A tile with a new row [WIDTH] where it is `here`, if anywhere."""
    key = tl.where(here[:, None], new_key[None, :], key)
    return key, tl.where(here[:, None], new_value[None, :], value)


@triton.jit
def look_kernel(
    qkv: tl.tensor,  # [batch, (GROUP + 2) × kv_heads, WIDTH]: queries, keys, values
    said: tl.tensor,  # [batch, 2 × kv_heads, WIDTH]: keys and values of the first of two rows
    keys: tl.tensor,  # [batch, kv_heads, slots, WIDTH]; the token's own is put there
    values: tl.tensor,
    position: tl.tensor,  # [batch], one more afterwards
    rates: tl.tensor,  # [HALF]
    found: tl.tensor,  # [batch, kv_heads, GROUP, parts, WIDTH] in 32 bits, where there are several parts
    tops: tl.tensor,  # [batch, kv_heads, GROUP, parts]: the highest score, as a power of two
    totals: tl.tensor,  # the same: sums of powers, relative to it
    arrived: tl.tensor,  # [batch × kv_heads + batch], see `arrivals`
    reads: tl.tensor,  # [batch, kv_heads, GROUP, WIDTH]: what comes out
    kv_heads: int,
    slots: int,
    persistent: int,
    parts: int,
    size: int,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    SEGMENTED: tl.constexpr,
    ALONE: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """One program is one part of one head of keys, for all heads of queries that share it; the last joins the parts."""
    row, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    sample, head = row // kv_heads, row % kv_heads
    samples = arrived + tl.num_programs(0) // parts + sample
    ROWS: tl.constexpr = 1 if said is None else 2
    SCALE: tl.constexpr = WIDTH**-0.5 * LOG2_E
    low = keys.dtype.element_ty
    wide = tl.arange(0, WIDTH)
    keys += row * slots * WIDTH
    values += row * slots * WIDTH
    at, length = tl.load(position + sample), (slots - persistent) // ROWS
    # In 32 bits, as far as texts go: a remainder in 64 takes longer than what it decides.
    inside = at.to(tl.int32) % length
    place = inside if SEGMENTED else at
    # The last slot that is seen: all have been filled where tokens went round.
    last = inside if SEGMENTED else tl.where(at < length, inside, length - 1)
    begin, end = part * size, part * size + size
    bound = tl.minimum(slots, end * SLOTS)
    if ALONE:  # asked for before anything is waited for
        slot, there, key, value = tile_of(keys, values, begin, last, bound, persistent, length, ROWS, SLOTS, WIDTH)
    cosine, sine = turn_of(place, rates, HALF, WIDTH)
    await_the_one_before(OVERLAPS)
    come(samples, at)
    # What comes new, as the cache will have it: in the last row the token's own, before it what was said to it.
    queries = qkv + sample * (GROUP + 2) * kv_heads * WIDTH
    own = queries + (GROUP * kv_heads + head) * WIDTH
    own_slot = persistent + (ROWS - 1) * length + inside
    own_key = turned(own, cosine, sine, HALF, WIDTH).to(low)
    own_value = tl.load(own + kv_heads * WIDTH + wide).to(low)
    if ROWS == 2:
        second = said + (sample * 2 * kv_heads + head) * WIDTH
        said_slot = persistent + inside
        said_key = turned(second, cosine, sine, HALF, WIDTH).to(low)
        said_value = tl.load(second + kv_heads * WIDTH + wide).to(low)
    if ALONE:
        key, value = with_row(key, value, slot == own_slot, own_key, own_value)
        if ROWS == 2:
            key, value = with_row(key, value, slot == said_slot, said_key, said_value)
    for member in tl.static_range(GROUP):
        which = row * GROUP + member
        asked = queries + (head * GROUP + member) * WIDTH
        query = turned(asked, cosine, sine, HALF, WIDTH)[None, :] * SCALE
        if ALONE:
            highest, whole, answer = read_at_once(query, key, value, there)
        else:
            # Each place of a tile has a softmax of its own: what meets is joined once, behind the loop.
            top, total, read = nothing(SLOTS, WIDTH)
            filled = (persistent + (ROWS - 1) * length + last) // SLOTS + 1
            for tile in tl.range(begin, tl.minimum(end, filled), num_stages=STAGES):
                slot, there, key, value = tile_of(
                    keys, values, tile, last, bound, persistent, length, ROWS, SLOTS, WIDTH
                )
                key, value = with_row(key, value, slot == own_slot, own_key, own_value)
                if ROWS == 2:
                    key, value = with_row(key, value, slot == said_slot, said_key, said_value)
                score = tl.where(there, tl.sum(query * key.to(tl.float32), axis=1), LOWEST)
                top, total, read = met(top, total, read, score, there.to(tl.float32), value.to(tl.float32))
            highest, whole, answer = joined(top, total, read)
        if found is None:
            tl.store(reads + which * WIDTH + wide, (answer / whole).to(reads.dtype.element_ty))
        else:
            tl.store(found + (which * parts + part) * WIDTH + wide, answer)
            tl.store(tops + which * parts + part, highest)
            tl.store(totals + which * parts + part, whole)
    # Whoever has a slot puts there what comes, and nobody else looks at it.
    if own_slot // SLOTS // size == part:
        where = own_slot.to(tl.int64) * WIDTH + wide
        tl.store(keys + where, own_key)
        tl.store(values + where, own_value)
    if ROWS == 2:
        if said_slot // SLOTS // size == part:
            where = said_slot.to(tl.int64) * WIDTH + wide
            tl.store(keys + where, said_key)
            tl.store(values + where, said_value)
    if found is not None:
        if is_last(arrived + row, parts):
            for asking in range(row * GROUP, row * GROUP + GROUP):
                joint = read_of_parts(found, tops, totals, asking * parts, parts, SLOTS, WIDTH)
                tl.store(reads + asking * WIDTH + wide, joint.to(reads.dtype.element_ty))
    if (head == kv_heads - 1) & (part == parts - 1):
        advance(position + sample, at, samples, kv_heads * parts)


def stages(row: int) -> dict[str, int]:
    """Tiles that a program has at hand or has asked for, and its warps, where a key has so many bytes.

    Two warps meet sooner than four, as far as their registers hold a tile; and a small device has 100 kB to share.
    """
    return {"STAGES": 3 if row <= 256 else 2, "num_warps": 2 if row <= 128 else 4}


@torch.library.custom_op(
    "lockstep::look_",
    mutates_args=("keys", "values", "position"),
    schema="(Tensor qkv, Tensor? said, Tensor(a!) keys, Tensor(b!) values, Tensor(c!) position, Tensor? rates,"
    " int heads, int persistent, bool segmented) -> Tensor",
)
def look_(
    qkv: Tensor,
    said: Tensor | None,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    rates: Tensor | None,
    heads: int,
    persistent: int,
    segmented: bool,
) -> Tensor:
    """Reads [batch, heads × width] of one token each, as `looking.run` says; everything is in one piece."""
    record(NAME)
    if not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError("a cache that is written over must be in one piece")
    batch, kv_heads, slots, width = keys.shape
    shared = sharing(batch, kv_heads, slots)
    several = (batch * heads, shared.parts) if shared.parts > 1 else None
    found = qkv.new_empty(*several, width, dtype=torch.float32) if several else None
    tops, totals = (qkv.new_empty(several, dtype=torch.float32) if several else None for _ in range(2))
    reads = qkv.new_empty(batch, heads * width)
    look_kernel[(batch * kv_heads * shared.parts,)](
        qkv,
        said,
        keys,
        values,
        position,
        rates,
        found,
        tops,
        totals,
        counters("look_", qkv.device, batch * (kv_heads + 1)),
        reads,
        kv_heads,
        slots,
        persistent,
        shared.parts,
        shared.tiles,
        HALF=0 if rates is None else len(rates),
        GROUP=heads // kv_heads,
        SLOTS=SLOTS,
        WIDTH=width,
        SEGMENTED=segmented,
        ALONE=shared.tiles == 1,
        **stages(width * keys.element_size()),
        **started(qkv),
    )
    return reads


@look_.register_fake
def _(qkv: Tensor, said: Tensor | None, keys: Tensor, *others: Any) -> Tensor:
    heads = others[3]
    return qkv.new_empty(qkv.shape[0], heads * keys.shape[3])
