"""What each chunk wrote, computed once more for the way back, all chunks side by side."""

from __future__ import annotations

import triton
import triton.language as tl

from lockstep.kernels.memory.activations import activate, curve_of, slope_of
from lockstep.kernels.memory.heads import last_error, normalised
from lockstep.kernels.memory.tiles import added, product


@triton.jit
def rewrite_kernel(
    keys: tl.tensor_descriptor,  # [rows × time, WIDTH]
    values: tl.tensor_descriptor,
    threshold: tl.tensor,  # [rows, time]
    gain: tl.tensor,  # [heads, WIDTH]
    shift: tl.tensor,
    anchors: tl.tensor_descriptor,  # [heads or rows × 2 × WIDTH, HIDDEN]
    copies: tl.tensor_descriptor,  # [rows × chunks × 2 or 4 × WIDTH, HIDDEN]
    inputs: tl.tensor_descriptor,  # [rows × time, HIDDEN]: what comes out
    slopes: tl.tensor_descriptor,
    bends: tl.tensor_descriptor,  # the activation's second derivative, times what came back to it
    first_errors: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × time, WIDTH]
    normals: tl.tensor_descriptor,
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
    chunk = tl.program_id(0)
    row = chunk // chunks
    low = keys.dtype
    PARTS: tl.constexpr = 4 if MOMENTUM else 2
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    here, copy, anchor = chunk * CHUNK, chunk * PARTS * WIDTH, (row % anchor_rows) * 2 * WIDTH
    token = here + tl.arange(0, CHUNK)
    key = keys.load([here, 0])
    output = tl.zeros([CHUNK, WIDTH], tl.float32)
    for part in range(SPLIT):
        unit = part * BLOCK
        z = product(key, copies.load([copy, unit]), PRECISION)
        if ANCHOR:
            z = added(z, key, anchors.load([anchor, unit]), PRECISION)
        x = activate(z, ACTIVATION).to(low)
        inputs.store([here, unit], x)
        output = added(output, x, tl.trans(copies.load([copy + WIDTH, unit])), PRECISION)
        if ANCHOR:
            output = added(output, x, tl.trans(anchors.load([anchor + WIDTH, unit])), PRECISION)
    normal, scale = normalised(output, NORM, 1)
    normals.store([here, 0], normal.to(low))
    tl.store(scales + token[:, None], scale)
    value = values.load([here, 0]).to(tl.float32)
    limit = tl.load(threshold + token)[:, None] if HUBER else 0.0
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gain + wide)[None, :] if NORM else 1.0
    s = tl.load(shift + wide)[None, :] if NORM else 0.0
    error = last_error(normal, scale, key.to(tl.float32), value, g, s, limit, NORM, RESIDUAL, BIAS, P, 1).to(low)
    last_errors.store([here, 0], error)
    for part in range(SPLIT):
        unit = part * BLOCK
        z = product(key, copies.load([copy, unit]), PRECISION)
        if ANCHOR:
            z = added(z, key, anchors.load([anchor, unit]), PRECISION)
        slope = slope_of(z, ACTIVATION)
        slopes.store([here, unit], slope.to(low))
        returned = product(error, copies.load([copy + WIDTH, unit]), PRECISION)
        if ANCHOR:
            returned = added(returned, error, anchors.load([anchor + WIDTH, unit]), PRECISION)
        bends.store([here, unit], (returned * curve_of(z, ACTIVATION)).to(low))
        first_errors.store([here, unit], (returned * slope).to(low))
