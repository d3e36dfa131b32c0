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
    anchor: tl.tensor_descriptor,  # [heads or rows × HIDDEN, WIDTH]
    anchor_2: tl.tensor_descriptor,  # [heads or rows × WIDTH, HIDDEN]
    firsts: tl.tensor_descriptor,  # [rows × chunks × kinds × HIDDEN, WIDTH]
    seconds: tl.tensor_descriptor,  # [rows × chunks × kinds × WIDTH, HIDDEN]
    inputs: tl.tensor_descriptor,  # [rows × chunks × HIDDEN, CHUNK]: what comes out
    slopes: tl.tensor_descriptor,
    bends: tl.tensor_descriptor,  # the activation's second derivative, times what came back to it
    first_errors: tl.tensor_descriptor,
    last_errors: tl.tensor_descriptor,  # [rows × chunks × WIDTH, CHUNK]
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
    HIDDEN: tl.constexpr = BLOCK * SPLIT
    KINDS: tl.constexpr = 2 if MOMENTUM else 1
    HUBER: tl.constexpr = BIAS != "l2" and BIAS != "lp"
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    key = tl.trans(keys.load([chunk * CHUNK, 0]))
    output = tl.zeros([WIDTH, CHUNK], tl.float32)
    for part in range(SPLIT):
        unit = part * BLOCK
        z = product(firsts.load([chunk * KINDS * HIDDEN + unit, 0]), key, PRECISION)
        if ANCHOR:
            z = added(z, anchor.load([(row % anchor_rows) * HIDDEN + unit, 0]), key, PRECISION)
        x = activate(z, ACTIVATION).to(low)
        inputs.store([chunk * HIDDEN + unit, 0], x)
        output = added(output, seconds.load([chunk * KINDS * WIDTH, unit]), x, PRECISION)
        if ANCHOR:
            output = added(output, anchor_2.load([(row % anchor_rows) * WIDTH, unit]), x, PRECISION)
    normal, scale = normalised(output, NORM, 0)
    normals.store([chunk * WIDTH, 0], normal.to(low))
    tl.store(scales + token[None, :], scale)
    value = tl.trans(values.load([chunk * CHUNK, 0])).to(tl.float32)
    limit = tl.load(threshold + token)[None, :] if HUBER else 0.0
    wide = (row % heads) * WIDTH + tl.arange(0, WIDTH)
    g = tl.load(gain + wide)[:, None] if NORM else 1.0
    s = tl.load(shift + wide)[:, None] if NORM else 0.0
    error = last_error(normal, scale, key.to(tl.float32), value, g, s, limit, NORM, RESIDUAL, BIAS, P, 0).to(low)
    last_errors.store([chunk * WIDTH, 0], error)
    for part in range(SPLIT):
        unit = part * BLOCK
        z = product(firsts.load([chunk * KINDS * HIDDEN + unit, 0]), key, PRECISION)
        if ANCHOR:
            z = added(z, anchor.load([(row % anchor_rows) * HIDDEN + unit, 0]), key, PRECISION)
        slope = slope_of(z, ACTIVATION)
        slopes.store([chunk * HIDDEN + unit, 0], slope.to(low))
        returned = product(tl.trans(seconds.load([chunk * KINDS * WIDTH, unit])), error, PRECISION)
        if ANCHOR:
            returning = tl.trans(anchor_2.load([(row % anchor_rows) * WIDTH, unit]))
            returned = added(returned, returning, error, PRECISION)
        bends.store([chunk * HIDDEN + unit, 0], (returned * curve_of(z, ACTIVATION)).to(low))
        first_errors.store([chunk * HIDDEN + unit, 0], (returned * slope).to(low))
