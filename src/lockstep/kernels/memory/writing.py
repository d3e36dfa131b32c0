"""What each chunk wrote, computed once more for the way back, all chunks side by side."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.activations import activate, curve_of, slope_of
from lockstep.kernels.memory.heads import last_error, normalised
from lockstep.kernels.memory.tiles import added, place, product, turned


@triton.jit
def rewrite_kernel(
    keys: tl.tensor,  # [rows, time, WIDTH]
    values: tl.tensor,
    threshold: tl.tensor,  # [rows, time]
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    anchors: tl.tensor,  # [rows or heads, 2, …]
    copies: tl.tensor,  # [rows, chunks, 2 or 4, …]
    inputs: tl.tensor,  # [rows, chunks, HIDDEN, CHUNK]: what comes out
    slopes: tl.tensor,
    bends: tl.tensor,  # the activation's second derivative, times what came back to it
    first_errors: tl.tensor,
    last_errors: tl.tensor,  # [rows, chunks, WIDTH, CHUNK]
    normals: tl.tensor,
    scales: tl.tensor,  # [rows, time]
    heads: int,
    anchor_rows: int,
    chunks: int,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    MOMENTUM: tl.constexpr,
    ANCHOR: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    P: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program is one chunk of one row."""
    chunk = tl.program_id(0).to(tl.int64)
    row = chunk // chunks
    low = keys.dtype.element_ty
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    SIZE: tl.constexpr = WIDTH * HIDDEN
    PARTS: tl.constexpr = 4 if MOMENTUM else 2
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    token = chunk * CHUNK
    here = chunk * CHUNK * WIDTH
    copies += chunk * PARTS * SIZE
    if ANCHOR:
        anchors += (row % anchor_rows) * 2 * SIZE
    key = tl.load(keys + here + turned(WIDTH, CHUNK, WIDTH))
    output = tl.zeros([WIDTH, CHUNK], tl.float32)
    for part in range(SPLIT):
        deep = (chunk * HIDDEN + part * BLOCK) * CHUNK
        mine, mine_2 = part * BLOCK * WIDTH, SIZE + part * BLOCK
        weights = tl.load(copies + mine + place(WIDTH, BLOCK, WIDTH))
        if ANCHOR:
            weights = (weights.to(tl.float32) + tl.load(anchors + mine + place(WIDTH, BLOCK, WIDTH))).to(low)
        x = activate(product(weights, key, PRECISION), ACTIVATION).to(low)
        tl.store(inputs + deep + place(CHUNK, BLOCK, CHUNK), x)
        weights = tl.load(copies + mine_2 + place(HIDDEN, WIDTH, BLOCK))
        if ANCHOR:
            weights = (weights.to(tl.float32) + tl.load(anchors + mine_2 + place(HIDDEN, WIDTH, BLOCK))).to(low)
        output = added(output, weights, x, PRECISION)
    normal, scale = normalised(output, NORM, 0)
    tl.store(normals + here + place(CHUNK, WIDTH, CHUNK), normal.to(low))
    tl.store(scales + token + tl.arange(0, CHUNK)[None, :], scale)
    value = tl.load(values + here + turned(WIDTH, CHUNK, WIDTH)).to(tl.float32)
    limit = tl.load(threshold + token + tl.arange(0, CHUNK))[None, :] if HUBER else 0.0
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gain + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + wide)[:, None] if NORM else 0.0
    error = last_error(normal, scale, key.to(tl.float32), value, g, s, limit, NORM, RESIDUAL, BIAS, P, 0).to(low)
    tl.store(last_errors + here + place(CHUNK, WIDTH, CHUNK), error)
    for part in range(SPLIT):
        deep = (chunk * HIDDEN + part * BLOCK) * CHUNK
        mine, mine_2 = part * BLOCK * WIDTH, SIZE + part * BLOCK
        weights = tl.load(copies + mine + place(WIDTH, BLOCK, WIDTH))
        if ANCHOR:
            weights = (weights.to(tl.float32) + tl.load(anchors + mine + place(WIDTH, BLOCK, WIDTH))).to(low)
        z = product(weights, key, PRECISION)
        slope = slope_of(z, ACTIVATION)
        tl.store(slopes + deep + place(CHUNK, BLOCK, CHUNK), slope.to(low))
        weights = tl.load(copies + mine_2 + turned(HIDDEN, WIDTH, BLOCK))
        if ANCHOR:
            weights = (weights.to(tl.float32) + tl.load(anchors + mine_2 + turned(HIDDEN, WIDTH, BLOCK))).to(low)
        returned = product(weights, error, PRECISION)
        tl.store(bends + deep + place(CHUNK, BLOCK, CHUNK), (returned * curve_of(z, ACTIVATION)).to(low))
        tl.store(first_errors + deep + place(CHUNK, BLOCK, CHUNK), (returned * slope).to(low))
