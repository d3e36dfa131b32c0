"""What a linear memory's chunks write, as far as that waits for no other chunk: all chunks side by side.

With a gradient at every token the errors E of a tile solve the triangular system of `lockstep.memory.exact`. With T its
inverse they are

    E = W' (T b⁻.K) + S (T f⁻.K) - T (V - K anchor)

where W' is the memory's distance from the anchor at the tile's start: what stands in brackets is made here, and the
memory's way from tile to tile only has to multiply. All of it is turned: tokens run along the second axis.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.heads import normalised
from lockstep.kernels.memory.tiles import place, product, turned

LEAF = tl.constexpr(16)
"""Tokens whose triangular system is solved row by row."""


@triton.jit
def solve_kernel(
    keys: tl.tensor,  # [rows, time, WIDTH]
    values: tl.tensor,  # [rows, time, OUT]
    kept: tl.tensor,  # [rows, time]
    carried: tl.tensor,
    written: tl.tensor,  # [rows, time, CHUNK]
    anchors: tl.tensor,  # [rows or heads, OUT, WIDTH]
    inverse: tl.tensor,  # [rows, chunks, CHUNK, CHUNK] in 32 bits; out: T
    kept_keys: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]; out: T b⁻.K
    carried_keys: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]; out: T f⁻.K
    targets: tl.tensor,  # [rows, chunks, OUT, CHUNK]; out: T (V - K anchor)
    anchor_rows: int,
    chunks: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    MOMENTUM: tl.constexpr,
    ANCHOR: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program is one tile of one row."""
    chunk = tl.program_id(0).to(tl.int64)
    row = chunk // chunks
    low = keys.dtype.element_ty
    index = tl.arange(0, CHUNK)
    token = chunk * CHUNK
    here, there = chunk * CHUNK * WIDTH, chunk * CHUNK * OUT
    inverse += chunk * CHUNK * CHUNK
    key = tl.load(keys + here + turned(WIDTH, CHUNK, WIDTH))

    # How each error depends on those before it; a token finds what the one before it left.
    found = written + (chunk * CHUNK - 1) * CHUNK + place(CHUNK, CHUNK, CHUNK)
    shares = tl.load(found, mask=index[:, None] > 0, other=0.0).to(tl.float32)
    mutual = product(tl.load(keys + here + place(WIDTH, CHUNK, WIDTH)), key, PRECISION) * shares
    tl.store(inverse + place(CHUNK, CHUNK, CHUNK), mutual)
    tl.debug_barrier()
    invert_leaves(inverse, CHUNK)
    if CHUNK > 16:
        merge(inverse, 16, CHUNK)
    if CHUNK > 32:
        merge(inverse, 32, CHUNK)
    if CHUNK > 64:
        merge(inverse, 64, CHUNK)

    # What is fed to the memory, solved.
    solution = tl.load(inverse + turned(CHUNK, CHUNK, CHUNK)).to(low)
    wide = key.to(tl.float32)
    share = tl.load(kept + token + index - 1, mask=index > 0, other=1.0)[None, :]
    solved = product((wide * share).to(low), solution, PRECISION)
    tl.store(kept_keys + here + place(CHUNK, WIDTH, CHUNK), solved.to(low))
    if MOMENTUM:
        carry = tl.load(carried + token + index - 1, mask=index > 0, other=0.0)[None, :]
        solved = product((wide * carry).to(low), solution, PRECISION)
        tl.store(carried_keys + here + place(CHUNK, WIDTH, CHUNK), solved.to(low))
    target = tl.load(values + there + turned(OUT, CHUNK, OUT)).to(tl.float32)
    if RESIDUAL:
        target -= wide
    if ANCHOR:
        anchors += (row % anchor_rows) * OUT * WIDTH
        target -= product(tl.load(anchors + place(WIDTH, OUT, WIDTH)), key, PRECISION)
    solved = product(target.to(low), solution, PRECISION)
    tl.store(targets + there + place(CHUNK, OUT, CHUNK), solved.to(low))


@triton.jit
def invert_leaves(square: tl.tensor, CHUNK: tl.constexpr) -> None:
    """Blocks N on the diagonal become (1 + N)⁻¹, whose row j is e_j - Σ_s N[j,s] times the rows s before it."""
    rows, columns = tl.arange(0, LEAF)[None, :, None], tl.arange(0, LEAF)[None, None, :]
    corner = square + tl.arange(0, CHUNK // LEAF)[:, None, None] * (LEAF * CHUNK + LEAF)
    factors = tl.load(corner + columns * CHUNK + rows)  # turned, so that a row needs no turning later
    solution = tl.where(rows == columns, 1.0, factors * 0.0)
    for j in range(1, LEAF):
        row = tl.sum(tl.where(columns == j, factors, 0.0), axis=2, keep_dims=True)
        solution -= tl.where(rows == j, tl.sum(row * solution, axis=1, keep_dims=True), 0.0)
    tl.debug_barrier()
    tl.store(corner + rows * CHUNK + columns, solution)
    tl.debug_barrier()


@triton.jit
def merge(square: tl.tensor, SIZE: tl.constexpr, CHUNK: tl.constexpr) -> None:
    """From inverted blocks A and B on the diagonal to blocks of twice the size, with -B N A between them.

    In full precision always: errors here are as large as the rest is, however small the tokens' own.
    """
    tile = place(CHUNK, SIZE, SIZE)
    for pair in range(CHUNK // (2 * SIZE)):
        corner = square + pair * 2 * SIZE * (CHUNK + 1)
        half = product(tl.load(corner + SIZE * CHUNK + tile), tl.load(corner + tile), "tf32x3")
        half = product(tl.load(corner + SIZE * (CHUNK + 1) + tile), half, "tf32x3")
        tl.debug_barrier()
        tl.store(corner + SIZE * CHUNK + tile, -half)
    tl.debug_barrier()


@triton.jit
def restate_kernel(
    keys: tl.tensor,  # [rows, time, WIDTH]
    anchors: tl.tensor,  # [rows or heads, OUT, WIDTH]
    copies: tl.tensor,  # [rows, chunks, 1 or 2, OUT, WIDTH]
    normals: tl.tensor,  # [rows, chunks, OUT, CHUNK]
    scales: tl.tensor,  # [rows, time]
    anchor_rows: int,
    chunks: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT: tl.constexpr,
    MOMENTUM: tl.constexpr,
    ANCHOR: tl.constexpr,
    NORM: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """What the memory at a chunk's start said to its keys, normal where it has a norm; one program is one chunk."""
    chunk = tl.program_id(0).to(tl.int64)
    low = keys.dtype.element_ty
    PARTS: tl.constexpr = 2 if MOMENTUM else 1
    weights = tl.load(copies + chunk * PARTS * OUT * WIDTH + place(WIDTH, OUT, WIDTH))
    if ANCHOR:
        anchors += (chunk // chunks % anchor_rows) * OUT * WIDTH
        weights = (weights.to(tl.float32) + tl.load(anchors + place(WIDTH, OUT, WIDTH))).to(low)
    key = tl.load(keys + chunk * CHUNK * WIDTH + turned(WIDTH, CHUNK, WIDTH))
    normal, scale = normalised(product(weights, key, PRECISION), NORM, 0)
    tl.store(normals + chunk * CHUNK * OUT + place(CHUNK, OUT, CHUNK), normal.to(low))
    tl.store(scales + chunk * CHUNK + tl.arange(0, CHUNK)[None, :], scale)
