"""When the kernels for Hopper are used, and how they are started, by the names that `launches` has."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from lockstep.kernels.memory.call import Back, Chunks, EndBar, ReadBar, Rewritten, Written
from lockstep.kernels.memory.coefficients import Coefficients
from lockstep.kernels.memory.hopper_chain import chain_kernel
from lockstep.kernels.memory.hopper_chain_back import chain_backward_kernel
from lockstep.kernels.memory.hopper_reading import read_kernel
from lockstep.kernels.memory.hopper_reading_back import read_backward_kernel
from lockstep.kernels.memory.hopper_settling import settle_kernel
from lockstep.kernels.memory.hopper_writing import rewrite_kernel

WIDTH, HIDDEN, CHUNK = 64, 128, 64
"""The one size they are written for: what an expansion of two makes of heads of 64."""


def suited(run: Chunks) -> bool:
    """Whether this call is for Hopper, in 16 bits, and of the size its kernels know."""
    keys = run.tokens.keys
    return (
        not triton.knobs.runtime.interpret
        and keys.is_cuda
        and torch.cuda.get_device_capability(keys.device)[0] == 9
        and keys.dtype == torch.bfloat16
        and (run.width, run.hidden, run.chunk) == (WIDTH, HIDDEN, CHUNK)
    )


def sheets(*tensors: Tensor | None, columns: int = HIDDEN) -> list[TensorDescriptor | None]:
    """The last dimension across, all others down, in tiles of a chunk or a matrix, which have as many rows."""
    return [None if x is None else sheet(x, min(columns, x.shape[-1])) for x in tensors]


def sheet(x: Tensor, columns: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(x.view(-1, x.shape[-1]), [CHUNK, columns], layout(columns, x.dtype))


@cache
def layout(columns: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """Of a tile in shared memory; found once, because finding it takes longer than a launch."""
    return gl.NVMMASharedLayout.get_default_for([CHUNK, columns], gl.float32 if dtype == torch.float32 else gl.bfloat16)


def constants(run: Chunks) -> dict[str, Any]:
    sizes = {"CHUNK": CHUNK, "WIDTH": WIDTH, "HIDDEN": HIDDEN, "MOMENTUM": run.tokens.momentum is not None}
    return run.memory | sizes | {"num_warps": 8}


def programs(run: Chunks) -> tuple[int]:
    """One for each multiprocessor, where chunks are side by side."""
    properties = torch.cuda.get_device_properties(run.tokens.keys.device)
    return (min(properties.multi_processor_count, run.rows * run.chunks),)


def walk(run: Chunks, found: Coefficients, held: Tensor, copies: Tensor, wrote: Written) -> None:
    tokens = run.tokens
    chain_kernel[(run.rows,)](
        *sheets(tokens.keys, tokens.values),
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        *found.ends,
        *sheets(tokens.anchors, held, copies, *wrote),
        *run.sizes,
        **constants(run),
    )


def read(run: Chunks, found: Coefficients, copies: Tensor, wrote: Written, reads: Tensor) -> None:
    tokens = run.tokens
    read_kernel[programs(run)](
        *sheets(tokens.queries, tokens.keys),
        tokens.gain,
        tokens.shift,
        found.kept,
        found.carried,
        *sheets(found.written, tokens.anchors, copies, *wrote, reads),
        *run.sizes,
        run.rows * run.chunks,
        **constants(run),
    )


def rewrite(run: Chunks, copies: Tensor, made: Rewritten) -> None:
    tokens = run.tokens
    rewrite_kernel[programs(run)](
        *sheets(tokens.keys, tokens.values),
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        *sheets(tokens.anchors, copies, *made[:6]),
        made.scales,
        *run.sizes,
        run.rows * run.chunks,
        **constants(run),
    )


def read_back(
    run: Chunks,
    found: Coefficients,
    copies: Tensor,
    wrote: Written,
    reads_bar: Tensor,
    bars: Back,
    read_bar: ReadBar,
) -> None:
    tokens = run.tokens
    read_backward_kernel[programs(run)](
        *sheets(tokens.queries, tokens.keys, reads_bar),
        tokens.gain,
        found.kept,
        found.carried,
        *sheets(found.written, tokens.anchors, copies, *wrote, *bars, read_bar.keys, read_bar.queries),
        read_bar.kept,
        read_bar.carried,
        *sheets(read_bar.written),
        read_bar.gain,
        read_bar.shift,
        *run.sizes,
        run.rows * run.chunks,
        **constants(run),
    )


def walk_back(
    run: Chunks,
    found: Coefficients,
    copies: Tensor,
    made: Rewritten,
    bars: Back,
    errors_bar: Tensor,
    copies_bar: Tensor,
    held_bar: Tensor,
) -> None:
    tokens = run.tokens
    chain_backward_kernel[(run.rows,)](
        *sheets(tokens.queries, tokens.keys, tokens.values),
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        *found.ends,
        *sheets(tokens.anchors, copies, made.inputs, made.slopes, made.bends, made.last_errors, made.normals),
        made.scales,
        *sheets(*bars, errors_bar, copies_bar, held_bar),
        *run.sizes,
        **constants(run),
    )


def settle(
    run: Chunks,
    found: Coefficients,
    copies: Tensor,
    made: Rewritten,
    hidden_bar: Tensor,
    copies_bar: Tensor,
    errors_bar: Tensor,
    keys_bar: Tensor,
    end_bar: EndBar,
) -> None:
    tokens = run.tokens
    settle_kernel[programs(run)](
        *sheets(tokens.keys, tokens.values),
        tokens.threshold,
        tokens.gain,
        tokens.shift,
        found.end_written,
        found.end_velocity_written,
        *sheets(tokens.anchors, copies, made.inputs, made.first_errors, columns=HIDDEN // 2),
        *sheets(made.last_errors, made.normals),
        made.scales,
        *sheets(errors_bar, hidden_bar, copies_bar, keys_bar, end_bar.values, columns=HIDDEN // 2),
        *end_bar[1:],
        *run.sizes,
        run.rows * run.chunks,
        **constants(run),
    )
